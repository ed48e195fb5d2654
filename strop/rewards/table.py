"""The built-in rewards, and which of them scores which source."""

from __future__ import annotations

BUILTINS: dict[str, str] = {
    "gsm8k": "strop.rewards.gsm8k.gsm8k_reward",
    "math": "strop.rewards.math.math_reward",
    "countdown": "strop.rewards.countdown.countdown_reward",
    "choice": "strop.rewards.choice.choice_reward",
    "format": "strop.rewards.format.format_reward",
    "exact": "strop.rewards.exact.exact_reward",
    "by_source": "strop.rewards.by_source.by_source_reward",
}
"""Name in a run file -> where the function is."""

SOURCES: dict[str, str] = {
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
}
"""A task's source, as verl's `data_source` columns name it (`*` stands for any ending) -> built-in."""
