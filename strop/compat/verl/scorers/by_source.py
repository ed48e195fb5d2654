"""`verl_by_source`: verl's scorer of each task's `data_source`, as `default_compute_score` selects it."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal

from strop.compat.verl.extension import REWARD_BY_SOURCE
from strop.compat.verl.scorers.code import verl_code_reward
from strop.compat.verl.scorers.math import verl_gsm8k_reward, verl_math_dapo_reward
from strop.config.schema.reward import SandboxConfig
from strop.rewards.builtin.code import DEFAULT_SANDBOX
from strop.rewards.registry import load_reward_function

# Loaded with this module, so that no task's time limit includes an import.
_REWARDS: dict[str, Callable[..., float]] = {
    name: load_reward_function(name) for name in sorted(set(REWARD_BY_SOURCE.values()))
}
_GSM8K_CHARS = {"0.4": None, "0.5": 300, "0.9": 300}


def verl_by_source_reward(
    completion: str,
    answer: Any,
    source: str,
    *,
    version: Literal["0.4", "0.5", "0.9"] = "0.4",
    sandbox: SandboxConfig = DEFAULT_SANDBOX,
    budget_seconds: float = 24.0,
) -> float:
    """Value of the scorer that `REWARD_BY_SOURCE` has for the task's source.

    Since version 0.5, GSM8K's scorer searches only the last 300 characters; in version 0.9 (verl 0.9.1), that of
    `math_dapo` and `aime*` falls back to the last box. Raises ValueError for an unknown source.
    """
    name = next((name for known, name in REWARD_BY_SOURCE.items() if fnmatchcase(source, known)), None)
    if name is None:
        known = ", ".join(REWARD_BY_SOURCE)
        raise ValueError(
            f"verl has no reward for the data_source {source!r}; it has one for {known}. Write a "
            "custom_reward_function, or one of these names in the data"
        )
    if name == "verl_code":
        return verl_code_reward(completion, answer, sandbox=sandbox, budget_seconds=budget_seconds)
    if name == "verl_gsm8k":
        return verl_gsm8k_reward(completion, answer, last_chars=_GSM8K_CHARS[version])
    if name == "verl_math_dapo":
        return verl_math_dapo_reward(completion, answer, version=version)
    return _REWARDS[name](completion, answer)
