"""A whole run with rewards from a script in place of people, and its exact repetition from the recorded answers."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from strop.pipelines.human_feedback import AnnotationQueue

from .conftest import Values
from .results import rows_of, train, weights


def test_a_run_with_recorded_answers_repeats_the_run(values: Values, tmp_path: Path) -> None:
    """The second run gets the folder with the answers of the first one, and nobody answers it."""
    feedback = {"type": "human_feedback", "unanswered": "error", "timeout_seconds": 600}
    settings = {"buffer__pipeline": [feedback], "data__eval": [], "evaluate": {}}
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
        train(values(name="asked", **settings), "trainer.duration=2 steps")
    finally:
        ended.set()
        thread.join()
    assert [row["pipeline/0_human_feedback/answered"] for row in rows_of(folder)[1:]] == [8, 8]
    again = tmp_path / "runs" / "strop" / "again"
    shutil.copytree(folder / "annotations", again / "annotations")
    train(values(name="again", **settings), "trainer.duration=2 steps")
    assert weights(again) == weights(folder)
