"""Experience operator that asks people for scores of responses, and waits for their answers."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strop.config.schema.buffer import HumanFeedbackConfig
from strop.errors import RolloutError
from strop.pipelines.annotation_queue import AnnotationQueue, Answer
from strop.pipelines.group_shaping import with_reward
from strop.pipelines.services import ExperienceServices, prompt_text
from strop.printable import encodable
from strop.seeds import derive_seed
from strop.types import Rollout, RolloutGroup

log = logging.getLogger("strop.pipelines")

HUMAN_SCORE = "human_score"
"""Name of the statistic in a rollout's `info`."""
_POLL_SECONDS = 0.25


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
        return with_reward(replace(rollout, info={**rollout.info, HUMAN_SCORE: score}), reward)


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
