"""The built-in rewards by name, and the built-in reward of each known task source."""

from __future__ import annotations

from strop.extensions import Extension, all_extensions, extension_of

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
