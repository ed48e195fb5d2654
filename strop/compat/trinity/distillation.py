"""Trinity's on-policy distillation: the teacher and the divergence of `on_policy_distill` and `jsd`."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, KeyMapping, ReadFunction, mapped
from strop.compat.trinity import presets
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.config.schema.distillation import SampledJsdConfig

_ARGS, _TEACHER = "algorithm.advantage_fn_args", "explorer.auxiliary_models.0.model_path"
_WORKFLOW_ARGS = "buffer.explorer_input.taskset.workflow_args"
_FIELD = "algorithm.distillation"


def read_distillation(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    """The teacher is the first auxiliary model, and the workflow's `temperature` divides its logits.

    The divergence of the sampled tokens is a reward of each token: that of `on_policy_distill` is log p - log q.
    """
    path = foreign[_TEACHER] if foreign["explorer.auxiliary_models"] else None
    if not path:
        raise foreign.error_for(
            _TEACHER,
            f"{_TEACHER} is missing: the advantages {advantage} are a divergence from a teacher, which is the "
            "first auxiliary model.",
        )
    divergence: dict[str, Any] = {"type": "sampled_kl", "estimator": "k1"}
    if advantage == "jsd":
        divergence = {"type": "sampled_jsd", "beta": foreign[f"{_ARGS}.lambda_coef"]}
    return {
        f"{_FIELD}.teachers": [{"path": path}],
        f"{_FIELD}.reward": {"divergence": divergence, "coef": foreign[f"{_ARGS}.kl_coef"]},
        f"{_FIELD}.temperature": (foreign[_WORKFLOW_ARGS] or {}).get("temperature", 1.0),
    }


def write_distillation(section: DistillationOnlyConfig) -> dict[str, Any]:
    """The arguments of the advantage function; none where the divergence is in the loss."""
    reward = section.distillation.reward
    if reward is None:
        return {}
    values: dict[str, Any] = {f"{_ARGS}.kl_coef": reward.coef}
    if isinstance(reward.divergence, SampledJsdConfig):
        values[f"{_ARGS}.lambda_coef"] = reward.divergence.beta
    return values


def rows(read: ReadFunction) -> tuple[KeyMapping, ...]:
    """Rows of the advantage functions' arguments; `read` is the converter of the algorithm."""
    return (
        mapped(
            f"{_ARGS}.kl_coef",
            1.0,
            f"{_FIELD}.reward.coef",
            read=read,
            inactive=presets.only_advantages(*presets.DISTILLED),
        ),
        mapped(
            f"{_ARGS}.lambda_coef",
            0.5,
            f"{_FIELD}.reward.divergence.beta",
            read=read,
            inactive=presets.only_advantages("jsd"),
        ),
    )
