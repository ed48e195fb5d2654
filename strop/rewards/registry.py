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
    "reasoning_gym": "strop.rewards.builtin.reasoning_gym.reasoning_gym_reward",
    "by_source": "strop.rewards.builtin.by_source.by_source_reward",
    "verl_by_source": "strop.rewards.upstream.verl_by_source.verl_by_source_reward",
    "verl_gsm8k": "strop.rewards.upstream.verl_math.verl_gsm8k_reward",
    "verl_math": "strop.rewards.upstream.verl_math.verl_math_reward",
    "verl_math_dapo": "strop.rewards.upstream.verl_math.verl_math_dapo_reward",
    "verl_prime_math": "strop.rewards.upstream.verl_math.verl_prime_math_reward",
    "verl_geometry3k": "strop.rewards.upstream.verl_math.verl_geometry3k_reward",
    "verl_search_qa": "strop.rewards.upstream.search_qa.verl_search_qa_reward",
    "verl_code": "strop.rewards.upstream.verl_code.verl_code_reward",
    "trinity_math": "strop.rewards.upstream.trinity.trinity_math_reward",
    "trinity_math_boxed": "strop.rewards.upstream.trinity.trinity_math_boxed_reward",
    "trinity_math_dapo": "strop.rewards.upstream.trinity.trinity_math_dapo_reward",
    "trinity_accuracy": "strop.rewards.upstream.trinity.trinity_accuracy_reward",
    "trinity_format": "strop.rewards.upstream.trinity.trinity_format_reward",
    "trinity_countdown": "strop.rewards.upstream.trinity.trinity_countdown_reward",
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

VERL_REWARD_BY_SOURCE: dict[str, str] = {
    "openai/gsm8k": "verl_gsm8k",
    "lighteval/MATH": "verl_math",
    "DigitalLearningGmbH/MATH-lighteval": "verl_math",
    "HuggingFaceH4/MATH-500": "verl_math",
    "math_dapo": "verl_math_dapo",
    "math": "verl_math_dapo",
    "math_dapo_reasoning": "verl_math_dapo",
    "aime*": "verl_math_dapo",
    **{
        f"numina_{name}": "verl_prime_math"
        for name in ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
    },
    "codecontests": "verl_code",
    "apps": "verl_code",
    "codeforces": "verl_code",
    "taco": "verl_code",
    "hiyouga/geometry3k": "verl_geometry3k",
    **{
        f"searchR1_{name}": "verl_search_qa"
        for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
    },
}
"""`data_source` (`*` matches any suffix) -> the scorer of verl's `default_compute_score` (verl 0.4 to 0.9)."""

SOURCE_REWARDS: dict[str, dict[str, str]] = {
    "by_source": REWARD_BY_SOURCE,
    "verl_by_source": VERL_REWARD_BY_SOURCE,
}
"""Built-in rewards that choose by the task's source -> the sources that they know."""

SANDBOXED_REWARDS = frozenset({"code", "by_source", "verl_code", "verl_by_source"})
"""Built-in rewards that run programs: they get the arguments `sandbox` and `budget_seconds`."""
