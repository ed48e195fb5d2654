"""Language models as judges: parts of the reward that are asked for, over the network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from strop.config.schema.judge import Calls
from strop.config.schema.judge import Judge as Section
from strop.errors import RewardError
from strop.rewards.budget import Budget
from strop.rewards.endpoint import Endpoint, Refused
from strop.rewards.question import Question
from strop.rewards.replies import Replies, key_of
from strop.types import Rollout, Task


class Judge:
    """One part of the reward. Calls go out side by side; each question is asked once, whatever the run."""

    def __init__(
        self,
        section: Section,
        calls: Calls,
        replies: Replies,
        budget: Budget,
        auxiliary: tuple[str, str] | None,
    ) -> None:
        """Raises RewardError for a prompt or pattern that cannot be used, a key that is not set, and an
        endpoint that does not answer."""
        self.name, self.weight = section.name, section.weight
        self._question = Question(section)
        self._url = section.url
        url, key = (
            _auxiliary(section, auxiliary) if section.url == "auxiliary" else (section.url, _key(section))
        )
        self._endpoint = Endpoint(url, key, calls.timeout_seconds, calls.retries, calls.backoff_seconds)
        self._endpoint.check()
        self._replies = replies
        self._budget = budget
        self._concurrency = calls.concurrency

    def score(self, answers: Sequence[tuple[Task, Rollout]]) -> list[float | str]:
        """For each answer its score, from 0 to 1, or what broke.

        Raises RewardError when the judge does not answer at all, or the budget is used up.
        """
        bodies = [self._question.body(task, rollout) for task, rollout in answers]
        asked = {key_of(self._url, body): body for body in bodies if not isinstance(body, str)}
        with ThreadPoolExecutor(self._concurrency, "judge") as pool:
            futures = {key: pool.submit(self._one, key, body) for key, body in asked.items()}
            try:
                scores = {key: future.result() for key, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [body if isinstance(body, str) else scores[key_of(self._url, body)] for body in bodies]

    def _one(self, key: str, body: dict[str, Any]) -> float | str:
        text = self._replies.get(key)
        if text is None:
            self._budget.spend_call()
            try:
                reply = self._endpoint.chat(body)
            except Refused as error:
                return str(error)
            self._budget.spend_tokens(reply.tokens)
            self._replies.put(key, reply)
            text = reply.text
        return self._question.read(text)


class Judges:
    """All judges of a run, with one budget and one store of replies."""

    def __init__(
        self,
        judges: Sequence[Section],
        calls: Calls,
        folder: Path,
        auxiliary: tuple[str, str] | None = None,
    ) -> None:
        """`folder` is where replies are kept unless `calls` names another; `auxiliary` is the address and
        the key of the run's own models. Raises what `Judge` raises."""
        self._replies = Replies(Path(calls.cache).expanduser() if calls.cache else folder)
        budget = Budget(calls, self._replies.spent())
        self.parts = tuple(Judge(section, calls, self._replies, budget, auxiliary) for section in judges)

    def close(self) -> None:
        """Let go of the replies' file."""
        self._replies.close()


def _auxiliary(section: Section, auxiliary: tuple[str, str] | None) -> tuple[str, str]:
    if auxiliary is None:
        raise RewardError(
            f"reward {section.name!r}: it asks an auxiliary model, and here there is no run that has one. "
            "Write the address of an endpoint as its url."
        )
    return auxiliary


def _key(section: Section) -> str | None:
    if section.key_variable is None:
        return None
    key = os.environ.get(section.key_variable)
    if not key:
        raise RewardError(
            f"reward {section.name!r}: the environment variable {section.key_variable} is not set; it should "
            "hold the key for the judge's endpoint. Set it, or write key_variable: null where none is needed."
        )
    return key
