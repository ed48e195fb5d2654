"""Questions to people about groups: answers, their effects on rewards, the end of the time, and repetition."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.buffer import HumanFeedbackConfig
from strop.errors import DataError, Interrupted, RolloutError
from strop.pipelines.human_feedback import AnnotationQueue, Answer, HumanFeedback
from strop.pipelines.operators import ExperienceServices
from strop.types import RolloutGroup
from tests.pipelines.test_experience_pipeline import answered, group, pipeline, rewards


def operator(folder: Path, check: Any = lambda: None, **section: Any) -> HumanFeedback:
    services = ExperienceServices(folder, folder / "annotations", check, lambda *_: [])
    return HumanFeedback(HumanFeedbackConfig(**section), services)


def answering(folder: Path, scores: list[dict[int, float]]) -> Any:
    """A check that answers all questions, in the order of their ids, while the operator waits."""
    queue, left = AnnotationQueue(folder / "annotations"), list(scores)

    def check() -> None:
        for question in queue.waiting():
            queue.answer(question["id"], left.pop(0))

    return check


def named(name: str, given: RolloutGroup) -> RolloutGroup:
    return RolloutGroup(name, given.task, given.rollouts)


@pytest.mark.parametrize(
    ("operation", "expected"), [("replace", [1.0, 1.0, None]), ("add", [2.0, 1.0, None])]
)
def test_scores_change_rewards(tmp_path, operation, expected):
    """The first response has the score 1/2, the second has none, the third failed."""
    ask = operator(tmp_path, answering(tmp_path, [{0: 0.5}]), operation=operation, weight=2.0)
    found = ask(answered("a", "b"))
    assert rewards(found) == expected
    assert found is not None and found.rollouts[0].info == {"human_score": 0.5}
    assert ask.take_counts() == {"answered": 1.0, "skipped": 0.0, "timeout": 0.0} and ask.take_counts() == {}


def test_several_groups_wait_at_the_same_time(tmp_path):
    ask = operator(tmp_path, answering(tmp_path, [{0: 0.25}, {}]), unanswered="drop")
    found = ask.process_groups([named("g-1", answered("a")), named("g-2", answered("b"))])
    assert rewards(found[0]) == [0.25, None] and found[1] is None
    assert ask.take_counts() == {"answered": 1.0, "skipped": 1.0, "timeout": 0.0}


def test_a_preference_is_about_two_different_responses(tmp_path):
    ask = operator(tmp_path, question="preference", timeout_seconds=0.01)
    assert ask(answered("same", "same")) is not None and ask.take_counts() == {}
    ask(answered("same", "same", "other"))
    (file,) = (tmp_path / "annotations" / "questions").iterdir()
    assert '"text": "same"' in file.read_text() and '"text": "other"' in file.read_text()
    assert file.read_text().count('"index"') == 2


def test_a_resumed_run_finds_the_outcome(tmp_path):
    """Time-outs are repeated like answers; a question with another content is another one."""
    first = operator(tmp_path, timeout_seconds=0.01, unanswered="drop")
    assert first(answered("a")) is None
    resumed = operator(tmp_path, answering(tmp_path, [{0: 0.0}]), unanswered="drop")
    assert resumed(answered("a")) is None
    assert rewards(resumed(answered("b"))) == [0.0, None]
    assert rewards(operator(tmp_path)(answered("b"))) == [0.0, None]


def test_unanswered_groups_are_kept_or_an_error(tmp_path):
    assert rewards(operator(tmp_path, timeout_seconds=0.01)(answered("a"))) == [1.0, None]
    with pytest.raises(RolloutError, match="nobody answered in time about group g"):
        operator(tmp_path, timeout_seconds=0.01, unanswered="error")(answered("b"))


def test_a_stop_ends_the_wait_and_a_restart_withdraws_the_question(tmp_path):
    def stop() -> None:
        raise Interrupted("stop", 15)

    queue = AnnotationQueue(tmp_path / "annotations")
    with pytest.raises(Interrupted):
        operator(tmp_path, stop)(answered("a"))
    assert len(queue.waiting()) == 1
    operator(tmp_path)
    assert queue.waiting() == []


def test_a_fraction_of_the_groups(tmp_path):
    ask = operator(tmp_path, fraction=0.25, timeout_seconds=0.01)
    ask.process_groups([named(f"train-{n:06d}-00000", group(1.0)) for n in range(400)])
    assert 80 < ask.take_counts()["timeout"] < 125


def test_only_one_answer_counts(tmp_path):
    """Ten threads answer at once: one of them is accepted, and the end of the time leaves its answer."""
    queue = AnnotationQueue(tmp_path)
    queue.ask({"id": "q", "responses": [{"index": 0}]})

    def answer(score: float) -> list[float]:
        try:
            queue.answer("q", {0: score})
        except DataError:
            return []
        return [score]

    with ThreadPoolExecutor(10) as threads:
        (accepted,) = chain.from_iterable(threads.map(answer, [number / 10 for number in range(10)]))
    assert queue.expire("q") == Answer("answered", {0: accepted})


def test_counts_are_metrics(tmp_path):
    both = pipeline({"type": "human_feedback", "timeout_seconds": 0.01}, replies=tmp_path)
    both(group(1.0))
    metrics = both.made.take_metrics()
    assert metrics["pipeline/0_human_feedback/timeout"] == 1.0
    assert metrics["pipeline/0_human_feedback/answered"] == 0.0
