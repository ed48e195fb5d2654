"""Presets of Trinity's `algorithm_type`: the default functions of each type, and the functions that a
configuration selects."""

from __future__ import annotations

from dataclasses import dataclass

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck
from strop.config.schema.algorithm import DistillationOnlyConfig, MixConfig, RolloutAlgorithmConfig
from strop.config.schema.distillation import SampledJsdConfig
from strop.errors import ConfigError

_OFFLINE = ("sft", "cpt", "dpo")
SUPERVISED = ("sft", "cpt")
"""Types that maximize the likelihood of given text: responses, or with cpt all of it."""
ADVANTAGES = {
    "ppo": "ppo",
    "grpo": "grpo",
    "opmd": "opmd",
    "rloo": "rloo",
    "reinforceplusplus": "reinforce_plus_plus",
    "remax": "remax",
    "reinforce": "reinforce",
    "asymre": "asymre",
    "grpo_verl": "grpo",
    "opmd_verl": "opmd",
    "asymre_verl": "asymre",
    "step_wise_grpo": "grpo",
    "multi_step_grpo": "grpo",
    "rec": "grpo",
    "clipb": "grpo",
    "clipv": "grpo",
    "cod": "grpo",
    "gigpo": "gigpo",
    "raft": "raft",
    "on_policy_distill": "distillation",
    "jsd": "distillation",
}
"""The algorithm whose advantages each `advantage_fn` computes."""


@dataclass(frozen=True, slots=True)
class AlgorithmPreset:
    """Default functions of an `algorithm_type`."""

    repeat: int
    advantage: str
    loss: str
    kl_loss: str = "k2"
    entropy: str = "default"
    sample: str = "default"


ENTROPY_FILTERS = {"clipb": 2.5, "clipv": 8.5}
"""Advantage functions that leave tokens out to keep the entropy up, with the default of their bound."""
PRESETS = {
    "on_policy_distill": AlgorithmPreset(8, "on_policy_distill", "ppo", kl_loss="none", entropy="none"),
    "jsd": AlgorithmPreset(8, "jsd", "ppo", kl_loss="none", entropy="none"),
    "ppo": AlgorithmPreset(1, "ppo", "ppo"),
    "grpo": AlgorithmPreset(2, "grpo", "ppo"),
    "grpo_verl": AlgorithmPreset(2, "grpo", "ppo"),
    "gspo": AlgorithmPreset(2, "grpo", "gspo"),
    "dapo": AlgorithmPreset(16, "grpo", "ppo", kl_loss="none"),
    "rloo": AlgorithmPreset(2, "rloo", "ppo"),
    "reinforceplusplus": AlgorithmPreset(2, "reinforceplusplus", "ppo"),
    "opmd": AlgorithmPreset(2, "opmd", "opmd"),
    "dpo": AlgorithmPreset(2, "none", "dpo"),
    "sft": AlgorithmPreset(1, "none", "sft", kl_loss="none", entropy="none"),
    "cpt": AlgorithmPreset(1, "none", "sft", kl_loss="none", entropy="none"),
    "mix": AlgorithmPreset(8, "grpo", "mix", entropy="mix", sample="mix"),
    "mix_chord": AlgorithmPreset(8, "grpo", "mix_chord", entropy="mix", sample="mix"),
    "multi_step_grpo": AlgorithmPreset(8, "step_wise_grpo", "ppo"),
    "gigpo": AlgorithmPreset(8, "gigpo", "ppo"),
    "raft": AlgorithmPreset(1, "raft", "sft", kl_loss="none", entropy="none"),
    "topr": AlgorithmPreset(2, "reinforce", "topr"),
    "cispo": AlgorithmPreset(2, "grpo", "cispo"),
    "m2po": AlgorithmPreset(8, "grpo", "m2po", kl_loss="none", entropy="none"),
    "sapo": AlgorithmPreset(2, "grpo", "sapo"),
    "asymre": AlgorithmPreset(2, "asymre", "opmd", kl_loss="none", entropy="none"),
    "sppo": AlgorithmPreset(2, "opmd", "sppo", kl_loss="none", entropy="none"),
    "rec": AlgorithmPreset(2, "rec", "rec", kl_loss="none", entropy="none"),
}
DISTILLED = ("on_policy_distill", "jsd")
"""Advantage functions that are a divergence from a teacher, the first auxiliary model."""
MIXED = ("mix", "mix_chord")
"""Types that train on an expert's demonstrations together with rollouts."""


def is_later(foreign: ForeignValues) -> bool:
    """Whether the configuration is of a later version of Trinity than 0.3: it has a key of one."""
    return any(row.since >= "0.4" for row in foreign.written.values() if row.since)


def algorithm_type(foreign: ForeignValues) -> str:
    """The value of `algorithm_type`."""
    return str(foreign["algorithm.algorithm_type"])


def preset(foreign: ForeignValues) -> AlgorithmPreset:
    """The preset of the configured type."""
    return PRESETS[algorithm_type(foreign)]


def is_offline(foreign: ForeignValues) -> bool:
    """Whether the algorithm trains on offline data (sft, cpt and dpo)."""
    return algorithm_type(foreign) in _OFFLINE


def option(foreign: ForeignValues, key: str, default: str) -> str:
    """The value of `algorithm.<key>`, or `default` for null."""
    value = foreign[f"algorithm.{key}"]
    return default if value is None else str(value)


_OF_VERL = "_verl"
"""End of the names of advantage functions that compute the same from verl's batches."""


def advantage(foreign: ForeignValues) -> str:
    """The advantage function, without the mark of verl's batches; `none` for offline algorithms."""
    if is_offline(foreign):
        return "none"
    return option(foreign, "advantage_fn", preset(foreign).advantage).removesuffix(_OF_VERL)


def loss(foreign: ForeignValues) -> str:
    """The name of the policy loss."""
    return option(foreign, "policy_loss_fn", preset(foreign).loss)


def repeat_times(foreign: ForeignValues) -> int:
    """The number of rollouts per task."""
    count = foreign["algorithm.repeat_times"]
    return preset(foreign).repeat if count is None else int(count)


def only_types(*types: str) -> InactiveCheck:
    """Check that finds a key inactive except under these types."""
    return lambda foreign: (
        None if algorithm_type(foreign) in types else f"algorithm_type is {algorithm_type(foreign)}"
    )


def only_advantages(*names: str) -> InactiveCheck:
    """Check that finds a key inactive except with these advantage functions."""
    return lambda foreign: (
        None if advantage(foreign) in names else f"the advantages are {advantage(foreign)}'s"
    )


def only_losses(*names: str) -> InactiveCheck:
    """Check that finds a key inactive except with these policy losses."""
    return lambda foreign: None if loss(foreign) in names else f"the policy loss is {loss(foreign)}"


def only_sampled(foreign: ForeignValues) -> str | None:
    """Check that finds a key inactive where the run does not train on sampled rollouts."""
    return f"algorithm_type is {algorithm_type(foreign)}" if is_offline(foreign) else None


def only_offline(foreign: ForeignValues) -> str | None:
    """Check that finds a key inactive except under sft, cpt and dpo."""
    if is_offline(foreign):
        return None
    return f"algorithm_type is {algorithm_type(foreign)}, which trains on its own rollouts"


without_critic = only_advantages("ppo")
"""Check that finds the critic's keys inactive where the run has no critic."""
ADVANTAGE_NAMES = {name: foreign_name for foreign_name, name in reversed(list(ADVANTAGES.items()))}


def algorithm_type_of(algorithm: RolloutAlgorithmConfig) -> str:
    """The closest `algorithm_type`. Raises ConfigError where Trinity does not have the algorithm."""
    if isinstance(algorithm, MixConfig):
        is_chord = algorithm.mu_schedule is not None or algorithm.expert_weight != "none"
        return "mix_chord" if is_chord else "mix"
    if algorithm.type not in ADVANTAGE_NAMES:
        raise ConfigError(
            f"algorithm.type {algorithm.type} is none of {', '.join(ADVANTAGE_NAMES)}, mix, sft and dpo."
        )
    name = ADVANTAGE_NAMES[algorithm.type]
    if isinstance(algorithm, DistillationOnlyConfig):
        reward = algorithm.distillation.reward
        return "jsd" if reward is not None and isinstance(reward.divergence, SampledJsdConfig) else name
    return name if name in PRESETS else "grpo"
