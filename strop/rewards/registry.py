"""The built-in rewards by name, and the built-in reward of each known task source."""

from __future__ import annotations

from collections.abc import Mapping

from strop.extensions import all_extensions, extension_of

BUILTIN_REWARDS: dict[str, str] = {
    "gsm8k": "strop.rewards.builtin.gsm8k.gsm8k_reward",
    "math": "strop.rewards.builtin.math.math_reward",
    "math_in_text": "strop.rewards.builtin.math_in_text.math_in_text_reward",
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

SOURCE_REWARDS: dict[str, dict[str, str]] = {"by_source": REWARD_BY_SOURCE}
"""Built-in rewards that choose by the task's source -> the sources that they know."""

SANDBOXED_REWARDS = frozenset({"code", "by_source"})
"""Built-in rewards that run programs: they get the arguments `sandbox` and `budget_seconds`."""


def builtin_reward(name: str) -> str | None:
    """Dotted path of the built-in reward of this name, or of another tool's; None where there is none."""
    return BUILTIN_REWARDS.get(name) or (found.rewards.get(name) if (found := extension_of(name)) else None)


def builtin_rewards() -> list[str]:
    """Names of the built-in rewards, and of those of other tools."""
    return [*BUILTIN_REWARDS, *(name for each in all_extensions() for name in each.rewards)]


def sources_of(name: str) -> Mapping[str, str] | None:
    """The sources that a reward knows, each with the name of its reward; None for a reward that does not choose by
    source."""
    return SOURCE_REWARDS.get(name) or (found.sources.get(name) if (found := extension_of(name)) else None)


def is_sandboxed(name: str) -> bool:
    """Whether a reward runs programs."""
    return name in SANDBOXED_REWARDS or (
        (found := extension_of(name)) is not None and name in found.sandboxed_rewards
    )
