"""`algorithm` of type dpo, cpo and orpo: training on pairs of a chosen and a rejected response; of type kto and bco:
training on responses with a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from strop.config.schema.base import Section
from strop.config.schema.policy_gradient import BaseOfflineConfig, HeadInit, Rows

if TYPE_CHECKING:
    from strop.config.schema.run import Run

DpoLossName = Literal[
    "sigmoid",
    "sigmoid_norm",
    "hinge",
    "ipo",
    "robust",
    "exo_pair",
    "nca_pair",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
]
"""Losses of DPO, by TRL's names."""
Divergence = Literal["reverse_kl", "forward_kl", "jsd", "alpha"]
_OF_MARGINS = frozenset({"sigmoid", "sigmoid_norm", "hinge", "ipo", "robust", "exo_pair", "discopop", "sft"})
"""Losses that read the difference between two scores, for which f-divergences are defined; `sft` reads none."""
_SMOOTHED = frozenset({"sigmoid", "sigmoid_norm", "robust", "exo_pair"})
_Fraction = Annotated[float, Field(ge=0, lt=0.5)]


class ReferenceSyncConfig(Section):
    """Changes of the reference model, every `every_updates` updates (TR-DPO, arXiv 2404.09656): reference =
    policy_weight * policy + (1 - policy_weight) * reference."""

    every_updates: int = Field(default=512, gt=0)
    """Number of updates between two changes of the reference, the paper's tau; 1 changes it after each."""
    policy_weight: float = Field(default=0.6, gt=0, le=1)
    """Weight of the policy, the paper's alpha; 1 replaces the reference."""


class DpoConfig(BaseOfflineConfig):
    """Direct preference optimization: prefers chosen over rejected responses (arXiv 2305.18290)."""

    type: Literal["dpo"] = "dpo"
    beta: float = Field(default=0.1, gt=0)
    """Strength of the regularization towards the reference, which is the initial model; under `ipo` its tau."""
    reference_sync: ReferenceSyncConfig | None = None
    """Changes of the reference towards the policy; null keeps the initial model. The reference is then a second model
    in memory, whose log-probs are computed in each update."""
    loss: DpoLossName | dict[DpoLossName, Annotated[float, Field(gt=0)]] = "sigmoid"
    """A loss, or several with their weights, such as `{sigmoid: 0.8, bco_pair: 0.2, sft: 1}` (mixed preference
    optimization, arXiv 2411.10442)."""
    label_smoothing: _Fraction = 0.0
    """Assumed fraction of pairs with swapped labels, for `sigmoid` and `sigmoid_norm` (conservative DPO), `robust` and
    `exo_pair`, which needs one above 0."""
    divergence: Divergence = "reverse_kl"
    """Divergence from the reference that regularizes (f-DPO, arXiv 2309.16240)."""
    divergence_alpha: float = 0.5
    """Alpha of `divergence: alpha`; 1 is the reverse KL divergence."""
    discopop_temperature: float = Field(default=0.05, gt=0)
    """Temperature of the mixture of `discopop`'s two losses."""
    excess_token_weight: float = Field(default=1.0, ge=0, le=1)
    """Weight of a response's tokens beyond the length of the other response of its pair (LD-DPO, arXiv 2409.06411)."""

    @property
    def losses(self) -> Mapping[DpoLossName, float]:
        """Weight of each loss."""
        return self.loss if isinstance(self.loss, dict) else {self.loss: 1.0}

    @model_validator(mode="after")
    def _options_of_losses(self) -> DpoConfig:
        names, faults = set(self.losses), []
        if not names - {"sft"}:
            faults.append(
                "loss has no term that compares the responses; name one in addition to sft, or write algorithm sft"
            )
        if self.label_smoothing and not names & _SMOOTHED:
            faults.append(f"label_smoothing has no effect on {_join(names)}; leave it out")
        if "exo_pair" in names and not self.label_smoothing:
            faults.append("exo_pair needs a label_smoothing above 0; the paper recommends 1e-3")
        if self.divergence != "reverse_kl" and (others := names - _OF_MARGINS):
            faults.append(f"divergence {self.divergence} is not defined for {_join(others)}; leave it out")
        if self.divergence_alpha != 0.5 and self.divergence != "alpha":
            faults.append("divergence_alpha has no effect without divergence: alpha; leave it out")
        if self.discopop_temperature != 0.05 and "discopop" not in names:
            faults.append("discopop_temperature has no effect without the loss discopop; leave it out")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def rows(self) -> Rows:
        return "pairs"

    @property
    def needs_reference_model(self) -> bool:
        """Whether the reference changes, so that its log-probs are computed in every update."""
        return self.reference_sync is not None

    @property
    def needs_initial_logprobs(self) -> bool:
        return self.reference_sync is None

    @property
    def changed_reference(self) -> ReferenceSyncConfig | None:
        return self.reference_sync

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of a reference that changes where it cannot."""
        if self.reference_sync is None:
            return
        if run.model.lora is not None:
            yield (
                "algorithm.reference_sync changes the weights of the reference, and with model.lora the reference is "
                "the model without its adapter; remove one of them"
            )
        if run.trainer.engine.type != "local":
            yield (
                f"trainer.engine.type is {run.trainer.engine.type}, but algorithm.reference_sync changes a reference "
                "model that one process holds; write trainer.engine: local"
            )


class CpoConfig(BaseOfflineConfig):
    """Contrastive preference optimization (arXiv 2401.08417) and SimPO (arXiv 2405.14734): pairs without a reference
    model."""

    type: Literal["cpo"] = "cpo"
    loss: Literal["sigmoid", "hinge", "ipo", "simpo"] = "sigmoid"
    """`ipo` and `simpo` read the mean log-prob of a response's tokens, the others their sum."""
    beta: float = Field(default=0.1, gt=0)
    """Factor of the difference between the two log-probs; under `ipo` its tau."""
    margin: float = Field(default=0.5, ge=0)
    """Margin that `simpo` asks for, its gamma, in units of `beta` times the difference."""
    label_smoothing: _Fraction = 0.0
    """Assumed fraction of pairs with swapped labels, for `sigmoid` and `simpo`."""
    sft_weight: float = Field(default=1.0, ge=0)
    """Weight of the cross entropy of the chosen responses; 0 for SimPO alone."""
    reward_shape: float = 0.0
    """Alpha of AlphaPO (arXiv 2501.03884): a response of probability p counts (1 - p^-alpha) / alpha; 0 is log p."""

    @model_validator(mode="after")
    def _options_of_losses(self) -> CpoConfig:
        if self.margin != 0.5 and self.loss != "simpo":
            raise ValueError("margin has no effect without the loss simpo; leave it out")
        if self.label_smoothing and self.loss not in ("sigmoid", "simpo"):
            raise ValueError(f"label_smoothing has no effect on {self.loss}; leave it out")
        return self

    @property
    def rows(self) -> Rows:
        return "pairs"


class OrpoConfig(BaseOfflineConfig):
    """Odds ratio preference optimization (arXiv 2403.07691): cross entropy of the chosen responses, and the odds of the
    chosen against the rejected ones, without a reference model."""

    type: Literal["orpo"] = "orpo"
    beta: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio's term, the paper's lambda."""

    @property
    def rows(self) -> Rows:
        return "pairs"


class KtoConfig(BaseOfflineConfig):
    """Kahneman-Tversky optimization (arXiv 2402.01306): raises desirable and lowers undesirable responses, from
    rows with a label."""

    type: Literal["kto"] = "kto"
    beta: float = Field(default=0.1, gt=0)
    """Strength of the regularization towards the reference, which is the initial model."""
    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    """`kto` compares with an estimate of the KL divergence from the reference, `apo_zero_unpaired` (arXiv 2408.06266)
    with 0."""
    desirable_weight: float = Field(default=1.0, ge=0)
    """Weight of the desirable responses' losses, the paper's lambda_D."""
    undesirable_weight: float = Field(default=1.0, ge=0)
    """Weight of the undesirable responses' losses, the paper's lambda_U."""

    @property
    def estimates_kl(self) -> bool:
        """Whether each update estimates the divergence from the reference, which is then kept in memory."""
        return self.loss == "kto"

    @model_validator(mode="after")
    def _some_weight(self) -> KtoConfig:
        if self.desirable_weight == self.undesirable_weight == 0:
            raise ValueError("desirable_weight and undesirable_weight are both 0; write one above 0")
        return self

    @property
    def rows(self) -> Rows:
        return "labels"

    @property
    def needs_initial_logprobs(self) -> bool:
        return True

    @property
    def needs_reference_model(self) -> bool:
        """Whether each update estimates the divergence, over other pairs of prompts and responses in every epoch."""
        return self.estimates_kl

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults of an update from which the divergence cannot be estimated."""
        if not self.estimates_kl:
            return
        key = "tasks_per_step" if run.trainer.tasks_per_update is None else "tasks_per_update"
        if getattr(run.trainer, key) == 1:
            yield (
                f"trainer.{key} is 1, but algorithm kto estimates the KL divergence from the prompts of an update with "
                "the responses of its other rows; write 2 or more, or algorithm.loss: apo_zero_unpaired"
            )
        held_out = {f"data.eval ({each.name})": each for each in run.data.eval if each.is_offline}
        for where, taskset in {**run.data.training_tasksets(), **held_out}.items():
            if taskset.images is not None:
                yield (
                    f"{where}.images: algorithm kto estimates the KL divergence from prompts with other rows' "
                    "responses, for text only; write algorithm.loss: apo_zero_unpaired, or algorithm bco"
                )


class BcoConfig(BaseOfflineConfig):
    """Binary classifier optimization (arXiv 2404.04656): classifies responses by their implied reward, shifted by its
    running mean."""

    type: Literal["bco"] = "bco"
    beta: float = Field(default=0.1, gt=0)
    """Strength of the regularization towards the reference, which is the initial model."""

    @property
    def rows(self) -> Rows:
        return "labels"

    @property
    def needs_initial_logprobs(self) -> bool:
        return True


PreferenceConfig = DpoConfig | CpoConfig | OrpoConfig
"""Algorithms that learn from pairs of responses."""
UnpairedConfig = KtoConfig | BcoConfig
"""Algorithms that learn from responses with a label."""


def _join(names: set[DpoLossName] | frozenset[str]) -> str:
    return ", ".join(sorted(names))


class RewardModelingConfig(BaseOfflineConfig):
    """Reward modeling: a sequence classifier with one output, from pairs (Bradley-Terry, arXiv 2203.02155), from
    scores (regression) or from labels of steps."""

    type: Literal["reward_model"] = "reward_model"
    loss: Literal["bradley_terry", "squared_error", "cross_entropy"] = "bradley_terry"
    """`bradley_terry`, -log sigmoid of the difference between the rewards of `chosen` and `rejected`;
    `squared_error`, between the reward of `response` and its `score`; or `cross_entropy`, of the sigmoid of the reward
    after each of the `steps`, and its label (a process reward model, arXiv 2305.20050)."""
    centering_coef: float = Field(default=0.0, ge=0)
    """Weight of the squared sum of a pair's two rewards, which keeps their mean near 0 (arXiv 2312.09244, eq. 2); 0 for
    none. The paper's is 0.01."""
    head: HeadInit = "zero"
    """Initial weights of the head `score`: `zero`, so that the first rewards are 0; `normal`, a normal distribution
    with the model's `initializer_range` as standard deviation, as in transformers; or `score`, those of the reward
    model in `model.path`, whose training continues."""
    append_eos: bool = False
    """Whether the tokenizer's end token follows a response that is read without a chat template, as TRL appends it;
    then write it for the reward model of later runs, too (`reward.models`)."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.centering_coef and self.loss != "bradley_terry":
            yield f"centering_coef has no effect on {self.loss}, whose rows set the mean of the rewards; remove it"

    @property
    def rows(self) -> Rows:
        kinds: dict[str, Rows] = {"squared_error": "scores", "cross_entropy": "steps"}
        return kinds.get(self.loss, "pairs")

    @property
    def reward_model(self) -> RewardModelingConfig | None:
        return self

    def run_faults(self, run: Run) -> Iterator[str]:
        """Faults in what a reward model requires of data and model."""
        tasksets = {
            **run.data.training_tasksets(),
            **{f"data.eval ({each.name})": each for each in run.data.eval},
        }
        for where, taskset in tasksets.items():
            if taskset.images is not None:
                yield f"{where}.images has no effect under algorithm reward_model, which reads text; remove it"
            if taskset.trained_turns != "all" or taskset.train_on_prompt:
                yield (
                    f"{where}.trained_turns and train_on_prompt have no effect under algorithm reward_model, which "
                    "scores whole conversations; remove them"
                )
        if not run.reward.is_empty:
            yield "reward has no effect under algorithm reward_model, which trains one and samples nothing; remove it"
        if run.model.lora is not None and run.model.lora.adapter is not None:
            yield (
                "model.lora.adapter is of a policy, and the adapter of a reward model starts new; remove it, or write "
                "a model with the adapter merged as model.path"
            )
