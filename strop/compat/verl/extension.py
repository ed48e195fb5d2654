"""Names of verl in a run, and what each stands for."""

from __future__ import annotations

from strop.extensions import Extension

_SCORERS = "strop.compat.verl.scorers"
REWARD_BY_SOURCE: dict[str, str] = {
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

EXTENSION = Extension(
    rewards={
        "verl_by_source": f"{_SCORERS}.verl_by_source_reward",
        "verl_gsm8k": f"{_SCORERS}.verl_gsm8k_reward",
        "verl_math": f"{_SCORERS}.verl_math_reward",
        "verl_math_dapo": f"{_SCORERS}.verl_math_dapo_reward",
        "verl_prime_math": f"{_SCORERS}.verl_prime_math_reward",
        "verl_geometry3k": f"{_SCORERS}.verl_geometry3k_reward",
        "verl_search_qa": f"{_SCORERS}.verl_search_qa_reward",
        "verl_code": f"{_SCORERS}.verl_code_reward",
    },
    sources={"verl_by_source": REWARD_BY_SOURCE},
    own_reward="custom_reward_function.path and .name",
    sandboxed_rewards=frozenset({"verl_code", "verl_by_source"}),
    workflows={"verl_agents": "strop.compat.verl.interface.agents.VerlAgentsWorkflow"},
    tool_files="strop.compat.verl.interface.tool_files",
)
