"""Queue of questions to people about the rollouts of a run: a folder that the run, Strop Studio and scripts share.

`questions/ID.json` is a question, `answers/ID.json` its answer or its time-out. Files appear complete, and an answer is
written once.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strop.errors import DataError
from strop.workers.files import atomic_write
from strop.workers.json_text import read_object

Outcome = Literal["answered", "skipped", "timeout"]
_ID = re.compile(r"[\w-]{1,200}")


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a question."""

    outcome: Outcome
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

    def _settle(self, name: str, outcome: Outcome, scores: Mapping[int, float]) -> bool:
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
