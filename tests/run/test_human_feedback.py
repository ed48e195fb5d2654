"""A whole run with rewards from a script in place of people, and its exact repetition from the recorded answers."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.pipelines.annotation_queue import AnnotationQueue
from tests.files import digest

WEIGHTS = "model.safetensors"


@pytest.mark.slow
def test_a_run_with_recorded_answers_repeats_the_run(
    values: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The second run gets the folder with the answers of the first one, and nobody answers it."""
    feedback = {"type": "human_feedback", "unanswered": "error", "timeout_seconds": 60}
    settings = {"buffer__pipeline": [feedback], "evaluate": {}, "trainer__duration": "2 steps"}
    folder = tmp_path / "runs" / "strop" / "asked"
    queue, ended = AnnotationQueue(folder / "annotations"), threading.Event()

    def people() -> None:
        while not ended.wait(0.05):
            for question in queue.waiting():
                scores = {each["index"]: float("1" in each["text"]) for each in question["responses"]}
                queue.answer(question["id"], scores)

    thread = threading.Thread(target=people)
    thread.start()
    try:
        asked = strop.train(strop.load(values(name="asked", **settings)))
    finally:
        ended.set()
        thread.join()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["pipeline/0_human_feedback/answered"] for row in rows[1:]] == [8, 8]
    again = tmp_path / "runs" / "strop" / "again"
    shutil.copytree(folder / "annotations", again / "annotations")
    repeated = strop.train(strop.load(values(name="again", **settings)))
    assert digest(repeated.model / WEIGHTS) == digest(asked.model / WEIGHTS)
