"""Reward functions by name: the built-in rewards, those of known task sources, dotted paths, and `file.py:name`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from strop.config.user_code import ImportPath
from strop.errors import RewardError
from strop.extensions import Extension, all_extensions, extension_of

BUILTIN_REWARDS: dict[str, str] = {
    "gsm8k": "strop.rewards.builtin.gsm8k.gsm8k_reward",
    "math": "strop.rewards.builtin.math.math_reward",
    "math_in_text": "strop.rewards.builtin.math.math_in_text_reward",
    "countdown": "strop.rewards.builtin.countdown.countdown_reward",
    "choice": "strop.rewards.builtin.choice.choice_reward",
    "format": "strop.rewards.builtin.format.format_reward",
    "exact": "strop.rewards.builtin.exact.exact_reward",
    "code": "strop.rewards.builtin.code.code_reward",
    "reasoning_gym": "strop.rewards.builtin.reasoning_gym.reasoning_gym_reward",
    "by_source": "strop.rewards.builtin.by_source.by_source_reward",
}
"""Name in a run file -> dotted path of the function."""

REWARD_BY_SOURCE: dict[str, str] = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "math_dapo": "math",
    "aime*": "math",
    "numina_aops_forum": "math",
    "numina_synthetic_math": "math",
    "numina_amc_aime": "math",
    "numina_synthetic_amc": "math",
    "numina_cn_k12": "math",
    "numina_olympiads": "math",
    "countdown": "countdown",
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
}
"""Task source, as in verl's `data_source` columns (`*` matches any suffix) -> built-in reward."""

_CORE = Extension(
    rewards=BUILTIN_REWARDS,
    sources={"by_source": REWARD_BY_SOURCE},
    own_reward="reward: file.py:name",
    sandboxed_rewards=frozenset({"code", "by_source"}),
)


def owner_of(name: str) -> Extension:
    """The package whose reward a name would be: a tool's, or Strop itself."""
    return extension_of(name) or _CORE


def builtin_reward(name: str) -> str | None:
    """Dotted path of the reward of this name; None for a function of the user."""
    return owner_of(name).rewards.get(name)


def builtin_rewards() -> list[str]:
    """Names of all rewards, those of other tools included."""
    return [name for each in (_CORE, *all_extensions()) for name in each.rewards]


def is_builtin_path(path: str) -> bool:
    """Whether a dotted path is that of a reward with a name."""
    return any(path in each.rewards.values() for each in (_CORE, *all_extensions()))


def load_reward_function(function: str) -> Callable[..., Any]:
    """Load the function that a run file names. Raises RewardError if it does not exist or is not callable."""
    path = builtin_reward(function) or function
    names = () if "." in path else builtin_rewards()
    return ImportPath(path, f"reward {function!r}", "function", names, RewardError).load()


def unknown_reward(function: str) -> str | None:
    """Why there is no built-in reward of this name; None for a built-in, and for a user's function, which is not
    imported."""
    if not function.isidentifier() or builtin_reward(function):
        return None
    try:
        load_reward_function(function)
    except RewardError as error:
        return str(error)
    return None


def absolute_reference(function: str) -> str:
    """The reference with an absolute file path, valid in a process with another working directory."""
    if ":" not in function:
        return function
    file, _, name = function.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}"


def default_reward_name(function: str | Callable[..., Any]) -> str:
    """Name of a reward component for which the run file gives no name."""
    if isinstance(function, str):
        return function.rpartition(":")[2].rpartition(".")[2]
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
