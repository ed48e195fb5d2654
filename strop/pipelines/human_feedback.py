"""Experience operator that asks people for scores of responses, and waits for their answers.

The questions are in a folder that the run, Strop Studio and scripts share: `questions/ID.json` is a question,
`answers/ID.json` its answer or its time-out. Files appear complete, and an answer is written once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from strop.config.schema.buffer import HumanFeedbackConfig
from strop.errors import DataError, RolloutError
from strop.pipelines.operators import ExperienceServices, prompt_text, with_reward
from strop.printable import encodable
from strop.seeds import derive_seed
from strop.types import Rollout, RolloutGroup
from strop.workers.files import atomic_write
from strop.workers.json_text import read_object

log = logging.getLogger("strop.pipelines")

_HUMAN_SCORE = "human_score"
"""Name of the statistic in a rollout's `info`."""
_POLL_SECONDS = 0.25
_Outcome = Literal["answered", "skipped", "timeout"]
_ID = re.compile(r"[\w-]{1,200}")


class HumanFeedback:
    """Asks about all groups of a call, waits for the answers, and changes rewards by the scores in them.

    A question's id has a digest of its content. So a resumed run that asks it again finds the answer, or that its
    time was over, and repeats what it did.
    """

    def __init__(self, section: HumanFeedbackConfig, services: ExperienceServices) -> None:
        self._section = section
        self._services = services
        self._queue = AnnotationQueue(services.annotations)
        self._queue.withdraw()  # of a process that was interrupted
        self._counts: Counter[str] = Counter()

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group after the question about it."""
        return self.process_groups([group])[0]

    def process_groups(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """The groups after the questions about them, which people may answer in any order.

        Raises RolloutError for a question without an answer under `unanswered: error`, and `Interrupted`.
        """
        asked = {group.id: question for group in groups if (question := self._question(group)) is not None}
        answers = self._answers(list(asked.values()))
        return [
            self._result(group, answers[asked[group.id]["id"]]) if group.id in asked else group
            for group in groups
        ]

    def take_counts(self) -> dict[str, float]:
        """Numbers of questions by outcome since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in ("answered", "skipped", "timeout")} if counts else {}

    def _question(self, group: RolloutGroup) -> dict[str, Any] | None:
        """The question about a group; None if nobody is asked about it."""
        if derive_seed(0, "human_feedback", group.id) >= self._section.fraction * 2**64:
            return None
        shown = [rollout for rollout in group.rollouts if rollout.reward is not None]
        if self._section.question == "preference":
            shown = _two_different(shown, derive_seed(0, "preference", group.id))
        if not shown:
            return None
        question = {
            "question": self._section.question,
            "group": group.id,
            "task_id": group.task.id,
            "prompt": prompt_text(group.task),
            "images": [image.path.name for image in group.task.media],
            "answer": None if group.task.answer is None else str(group.task.answer),
            "responses": [_response(rollout) for rollout in shown],
        }
        rewards = [rollout.reward for rollout in shown]
        digest = hashlib.sha256(json.dumps([question, rewards], sort_keys=True).encode()).hexdigest()
        return {"id": f"{group.id}-{digest[:12]}", **question}

    def _answers(self, questions: Sequence[dict[str, Any]]) -> dict[str, Answer]:
        """The answer to each question, by id."""
        for question in questions:
            self._queue.ask(question)
        limit = self._section.timeout_seconds
        end = time.monotonic() + limit
        answers: dict[str, Answer] = {}
        is_said = False
        while True:
            names = [question["id"] for question in questions if question["id"] not in answers]
            found = {name: self._queue.find_answer(name) for name in names}
            answers |= {name: answer for name, answer in found.items() if answer is not None}
            if len(answers) == len(questions):
                break
            if time.monotonic() >= end:
                answers |= {name: self._queue.expire(name) for name in names if name not in answers}
                break
            if not is_said:
                log.warning(
                    "buffer.pipeline: human_feedback waits up to %g s for answers to %d questions in %s; the page "
                    "Rate of strop studio shows them.",
                    *(limit, len(questions) - len(answers), self._services.annotations),
                )
                is_said = True
            self._services.check()
            time.sleep(max(0.0, min(_POLL_SECONDS, end - time.monotonic())))
        self._counts.update(answer.outcome for answer in answers.values())
        return answers

    def _result(self, group: RolloutGroup, answer: Answer) -> RolloutGroup | None:
        if answer.outcome == "answered":
            return replace(
                group, rollouts=tuple(self._scored(r, answer.scores.get(r.index)) for r in group.rollouts)
            )
        match self._section.unanswered:
            case "keep":
                return group
            case "drop":
                return None
            case "error":
                why = "skipped the question" if answer.outcome == "skipped" else "answered in time"
                raise RolloutError(
                    f"buffer.pipeline: human_feedback: {'somebody' if answer.outcome == 'skipped' else 'nobody'} {why} "
                    f"about group {group.id} (timeout_seconds: {self._section.timeout_seconds:g}). Delete its file in "
                    f"{self._services.annotations / 'answers'} and resume the run to ask again, or set unanswered to "
                    "keep or drop."
                )

    def _scored(self, rollout: Rollout, score: float | None) -> Rollout:
        if score is None or rollout.reward is None:
            return rollout
        value = self._section.weight * score
        reward = value if self._section.operation == "replace" else rollout.reward + value
        return with_reward(replace(rollout, info={**rollout.info, _HUMAN_SCORE: score}), reward)


def _two_different(rollouts: Sequence[Rollout], seed: int) -> list[Rollout]:
    """Two rollouts with different responses, in random order; none where all are equal."""
    shuffled = random.Random(seed).sample(rollouts, len(rollouts))
    others = [rollout for rollout in shuffled[1:] if rollout.text != shuffled[0].text]
    return [shuffled[0], others[0]] if others else []


def _response(rollout: Rollout) -> dict[str, Any]:
    messages = json.dumps(rollout.messages, ensure_ascii=False, default=str) if rollout.messages else None
    return {
        "index": rollout.index,
        "text": encodable(rollout.text),
        "messages": messages and encodable(messages),
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """_Outcome of a question."""

    outcome: _Outcome
    scores: Mapping[int, float]
    """Score of each rollout that a person scored, from 0 to 1, by its index."""


class AnnotationQueue:
    """The questions and answers in a folder."""

    def __init__(self, folder: Path) -> None:
        self._questions = folder / "questions"
        self._answers = folder / "answers"

    def ask(self, question: Mapping[str, Any]) -> None:
        """Add a question; a repeated one keeps its answer."""
        self._questions.mkdir(parents=True, exist_ok=True)
        self._answers.mkdir(exist_ok=True)
        file = self._questions / f"{question['id']}.json"
        if not file.exists():
            atomic_write(file, json.dumps(question, ensure_ascii=False, indent=1))

    def waiting(self) -> list[dict[str, Any]]:
        """The questions without an answer, in the order of their ids."""
        found = []
        for file in sorted(self._questions.glob("*.json")):
            question = _read(file) if not (self._answers / file.name).exists() else None
            if question is not None:
                found.append(question)
        return found

    def withdraw(self) -> None:
        """Remove the questions without an answer."""
        for question in self.waiting():
            (self._questions / f"{question['id']}.json").unlink(missing_ok=True)

    def find_answer(self, name: str) -> Answer | None:
        """The answer to the question with the id `name`; None while it waits. Raises `DataError` for a file that
        nobody can have answered with."""
        file = self._answers / f"{name}.json"
        content = _read(file)
        if content is None:
            return None
        try:
            scores = {int(index): float(score) for index, score in content["scores"].items()}
            return Answer(content["outcome"], scores)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{file} is not an answer to a question of a run ({error!r}); delete it."
            ) from error

    def answer(self, name: str, scores: Mapping[Any, Any]) -> None:
        """Answer a question with scores by index; no scores skip it.

        Raises `DataError` for a question that does not wait, and for scores of other rollouts or outside 0 to 1.
        """
        question = _read(self._questions / f"{name}.json") if _ID.fullmatch(name) else None
        if question is None:
            raise DataError(f"No question {name!r} waits for an answer; the run may have been resumed.")
        try:
            given = {int(index): float(score) for index, score in scores.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{scores!r} are not scores; write them by index, such as {{'0': 1.0}}."
            ) from error
        shown = [response["index"] for response in question["responses"]]
        wrong = [
            f"{index}: {score:g}"
            for index, score in given.items()
            if index not in shown or not 0 <= score <= 1
        ]
        if wrong:
            raise DataError(
                f"The question {name!r} has no place for the scores {', '.join(wrong)}; a score is between 0 and 1, "
                f"and the responses have the indices {', '.join(map(str, shown))}."
            )
        if not self._settle(name, "answered" if given else "skipped", given):
            raise DataError(f"The question {name!r} has been answered, or its time is over.")

    def expire(self, name: str) -> Answer:
        """Record that the time for an answer is over; an answer that came before this is returned."""
        self._settle(name, "timeout", {})
        found = self.find_answer(name)
        assert found is not None
        return found

    def _settle(self, name: str, outcome: _Outcome, scores: Mapping[int, float]) -> bool:
        """Write an answer; False if there is one."""
        file = self._answers / f"{name}.json"
        descriptor, temporary = tempfile.mkstemp(".tmp", ".", self._answers)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as content:
                json.dump({"outcome": outcome, "scores": dict(scores)}, content)
                content.flush()
                os.fsync(content.fileno())
            file.hardlink_to(temporary)  # fails where a person and the end of the time meet
        except FileExistsError:
            return False
        finally:
            Path(temporary).unlink(missing_ok=True)
        return True


def _read(file: Path) -> dict[str, Any] | None:
    """Content of a file; None if there is none. Raises `DataError` for another content than an object."""
    try:
        return read_object(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); delete it, or the folder above it.") from error
