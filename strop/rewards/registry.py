"""Registry of the built-in rewards, and the built-in reward of each known task source."""

from __future__ import annotations

BUILTIN_REWARDS: dict[str, str] = {
    "gsm8k": "strop.rewards.builtin.gsm8k.gsm8k_reward",
    "math": "strop.rewards.builtin.math.math_reward",
    "math_in_text": "strop.rewards.builtin.math_in_text.math_in_text_reward",
    "countdown": "strop.rewards.builtin.countdown.countdown_reward",
    "choice": "strop.rewards.builtin.choice.choice_reward",
    "format": "strop.rewards.builtin.format.format_reward",
    "exact": "strop.rewards.builtin.exact.exact_reward",
    "code": "strop.rewards.builtin.code.code_reward",
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

SANDBOXED_REWARDS = frozenset({"code", "by_source"})
"""Built-in rewards that run programs: they get the arguments `sandbox` and `budget_seconds`."""
