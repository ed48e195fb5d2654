"""What judges may cost, and what they have cost so far."""

from __future__ import annotations

import threading

from strop.config.schema.judge import Calls
from strop.errors import RewardError


class Budget:
    """Counts calls and tokens, those of earlier starts included. Any thread may spend."""

    def __init__(self, section: Calls, spent: tuple[int, int]) -> None:
        """`spent` are the calls and tokens so far."""
        self._section = section
        self._calls, self._tokens = spent
        self._lock = threading.Lock()

    def spend_call(self) -> None:
        """One more call. Raises RewardError when the budget is used up."""
        calls, tokens = self._section.max_calls, self._section.max_tokens
        with self._lock:
            if calls is not None and self._calls >= calls:
                raise self._used_up(f"reward.calls.max_calls ({calls})")
            if tokens is not None and self._tokens >= tokens:
                raise self._used_up(f"reward.calls.max_tokens ({tokens})")
            self._calls += 1

    def spend_tokens(self, tokens: int | None) -> None:
        """What a call has cost. Raises RewardError where the endpoint does not say, and there is a bound."""
        if tokens is None and self._section.max_tokens is not None:
            raise RewardError(
                "The judge's endpoint does not say how many tokens a call takes (`usage`), so "
                "reward.calls.max_tokens cannot be held. Write max_calls instead."
            )
        with self._lock:
            self._tokens += tokens or 0

    def _used_up(self, what: str) -> RewardError:
        return RewardError(
            f"The judges' budget is used up: {what}, after {self._calls} calls and {self._tokens} tokens. "
            "The run stops here. Write a larger budget, and the same command goes on from the last "
            "checkpoint; what judges have said is kept, and costs nothing again."
        )
