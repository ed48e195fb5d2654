"""`algorithm.distillation`: learning from a teacher, a frozen model with the policy's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.model import ModelConfig


class TeacherConfig(Section):
    """Frozen model that the policy learns from. It runs in the trainer's processes, as the reference does."""

    path: str
    """Hugging Face model folder, or a name on the Hub; its vocabulary must be the policy's."""
    tokenizer: str | None = None
    """Tokenizer folder, or a name on the Hub; the model's own if omitted."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Data type of the weights and matrix products."""
    sources: tuple[str, ...] | None = None
    """Data sources of the tasks that it teaches; null for all tasks whose source no other teacher lists."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""

    @property
    def model(self) -> ModelConfig:
        """The section of the teacher as a model."""
        return ModelConfig(
            path=self.path,
            tokenizer=self.tokenizer,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
        )


class VocabularyDivergence(Section):
    """Fields of the divergences that are summed over the vocabulary."""

    top_k: int | None = Field(default=None, gt=0)
    """Number of tokens that are summed over, the most likely ones; the others are left out, and a sum below 0
    counts as 0. Null for the whole vocabulary."""
    top_k_of: Literal["teacher", "policy"] = "teacher"
    """Model whose most likely tokens `top_k` takes."""
    min_logprob: float | None = Field(default=None, lt=0)
    """Lower bound of both models' log-probs in the sum; lower ones are raised to it. Null for no bound."""


class ReverseKlConfig(VocabularyDivergence):
    """KL(policy || teacher), which seeks a mode of the teacher (MiniLLM, arXiv 2306.08543)."""

    type: Literal["reverse_kl"] = "reverse_kl"


class ForwardKlConfig(VocabularyDivergence):
    """KL(teacher || policy), which covers all modes of the teacher."""

    type: Literal["forward_kl"] = "forward_kl"


class JsdConfig(VocabularyDivergence):
    """Generalized Jensen-Shannon divergence (GKD, arXiv 2306.13649, equation 1)."""

    type: Literal["jsd"] = "jsd"
    beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture: near 0 the gradient is that of the forward KL, near 1 of the reverse
    KL."""


class SampledKlLossConfig(Section):
    """Estimate of KL(policy || teacher) from the sampled tokens alone."""

    type: Literal["sampled_kl"] = "sampled_kl"
    estimator: Literal["abs", "k2", "k3"] = "k3"
    """Estimator, as in `kl_loss`; `k1` is none of them, because its gradient does not depend on the teacher."""


class SampledKlRewardConfig(Section):
    """Estimate of KL(policy || teacher) from the sampled tokens."""

    type: Literal["sampled_kl"] = "sampled_kl"
    estimator: Literal["k1", "abs", "k2", "k3"] = "k1"
    """Estimator, as in `kl_loss`; with `k1` the expected gradient is that of the reverse KL."""


class SampledJsdConfig(Section):
    """The sampled token's term in the sum of the generalized Jensen-Shannon divergence, as in Trinity-RFT."""

    type: Literal["sampled_jsd"] = "sampled_jsd"
    beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture."""


DivergenceConfig = ReverseKlConfig | ForwardKlConfig | JsdConfig
"""Divergences over the vocabulary, which need the logits of both models."""
SampledDivergenceConfig = SampledKlLossConfig | SampledKlRewardConfig | SampledJsdConfig
"""Divergences that need the log-probs of sampled tokens only."""


class DistillationLossConfig(Section):
    """Divergence from the teacher as a term of the loss, with its gradient."""

    divergence: Annotated[
        DivergenceConfig | SampledKlLossConfig, Field(discriminator="type"), type_shorthand("reverse_kl")
    ] = ReverseKlConfig()
    """Divergence at each sampled token."""
    coef: float = Field(default=1.0, gt=0)
    """Coefficient of the term."""
    max_divergence: float | None = Field(default=None, gt=0)
    """Maximum absolute value of a token's divergence, in nats; a token beyond it has no gradient. Null for no
    limit."""


class DistillationRewardConfig(Section):
    """Divergence from the teacher as a reward: each token's advantage decreases by it."""

    divergence: Annotated[
        SampledKlRewardConfig | SampledJsdConfig, Field(discriminator="type"), type_shorthand("sampled_kl")
    ] = SampledKlRewardConfig()
    """Divergence at each sampled token, by the policy at the start of the step."""
    coef: float = Field(default=1.0, gt=0)
    """Coefficient of the divergence."""
    max_divergence: float | None = Field(default=None, gt=0)
    """Maximum absolute value of a token's divergence, in nats; null for no limit."""


class DistillationConfig(Section):
    """On-policy distillation: the policy learns from a teacher on its own rollouts."""

    teachers: tuple[TeacherConfig, ...] = Field(min_length=1)
    """Teachers; several divide the tasks among them by `sources`."""
    loss: DistillationLossConfig | None = None
    """Divergence in the loss; null for none."""
    reward: DistillationRewardConfig | None = None
    """Divergence as a reward of each token; null for none."""
    temperature: float | None = Field(default=None, gt=0)
    """Divisor of the teacher's logits; null for the rollout's sampling temperature, which is always the
    policy's."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.loss is None and self.reward is None:
            yield (
                "distillation needs `loss`, `reward`, or both, such as `loss: {divergence: reverse_kl}` or "
                "`reward: {coef: 1.0}`"
            )
        if sum(teacher.sources is None for teacher in self.teachers) > 1:
            yield (
                "two teachers have no `sources`, so a task would have two teachers; write the data sources "
                "of the tasks that each one teaches"
            )
        listed = [source for teacher in self.teachers for source in teacher.sources or ()]
        for source in sorted({source for source in listed if listed.count(source) > 1}):
            yield f"two teachers list the source {source!r}; write it once"

    def teacher_of(self, source: str) -> int | None:
        """Number of the teacher of tasks with this data source; None if no teacher has it."""
        for number, teacher in enumerate(self.teachers):
            if teacher.sources is not None and source in teacher.sources:
                return number
        return next((n for n, teacher in enumerate(self.teachers) if teacher.sources is None), None)
