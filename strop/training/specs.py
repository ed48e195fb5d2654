"""Specifications of trained models: the settings that every rank builds the same model from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strop.config.schema import Run
from strop.config.schema.data import ImagesConfig
from strop.config.schema.distillation import DistillationConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import OptimizerConfig
from strop.config.schema.policy_gradient import CriticConfig, HeadInit, ProcessRewardConfig
from strop.config.schema.record import CheckpointConfig, ExportConfig
from strop.config.schema.trainer import RouterLossConfig, TrainingEngineConfig
from strop.config.units import Amount


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Settings of the trained policy or reward model, its optimizer, its reference model and its teachers."""

    model: ModelConfig
    optimizer: OptimizerConfig
    max_grad_norm: float | None
    """Maximum gradient norm; None for no clipping."""
    microbatch: Amount
    """Maximum size of a micro-batch."""
    checkpoint: CheckpointConfig
    export: ExportConfig
    seed: int
    """Seed of new adapter weights and of dropout."""
    needs_reference: bool
    """Whether a reference model is available: a frozen copy, or with LoRA the model without its adapter."""
    syncs_reference: bool
    """Whether the reference model's weights change, so that checkpoints have them."""
    distillation: DistillationConfig | None
    """Teachers of the policy; None for none."""
    router_loss: RouterLossConfig | None
    """Losses on the routers of a mixture of experts; None for none."""
    max_sequence_tokens: int
    """Maximum length of a sequence of the run."""
    images: ImagesConfig
    """Limits of the size of images."""
    engine: TrainingEngineConfig
    """Division of the model over ranks."""
    head: HeadInit | None = None
    """Initial weights of a classifier's head, in place of the language-model head; None for a language model."""

    @classmethod
    def of(cls, run: Run) -> PolicySpec:
        """The policy of a run."""
        return cls(
            model=run.model,
            optimizer=run.trainer.optimizer,
            max_grad_norm=run.trainer.max_grad_norm,
            microbatch=run.trainer.microbatch,
            checkpoint=run.checkpoint,
            export=run.export,
            seed=run.seed,
            needs_reference=run.algorithm.needs_reference_model,
            syncs_reference=run.algorithm.changed_reference is not None,
            distillation=run.algorithm.distillation,
            router_loss=run.trainer.router_loss,
            max_sequence_tokens=run.max_sequence_tokens,
            images=run.data.images,
            engine=run.trainer.engine,
            head=None if run.algorithm.reward_model is None else run.algorithm.reward_model.head,
        )

    @classmethod
    def of_process_reward(cls, run: Run, section: ProcessRewardConfig) -> PolicySpec:
        """The process reward model of a run, which is a language model with a reference."""
        return replace(
            cls.of(run),
            model=section.model or run.model,
            optimizer=section.optimizer,
            max_grad_norm=section.max_grad_norm,
            needs_reference=True,
            syncs_reference=False,
            distillation=None,
            router_loss=None,
        )


@dataclass(frozen=True, slots=True)
class CriticSpec:
    """Settings of a critic and its optimizer."""

    model: ModelConfig
    head: HeadInit
    """Initial weights of the value head."""
    optimizer: OptimizerConfig
    max_grad_norm: float | None
    """Maximum gradient norm; None for no clipping."""
    microbatch: Amount
    """Maximum size of a micro-batch."""
    checkpoint: CheckpointConfig
    seed: int
    """Seed of new adapter weights."""
    model_key: str
    """Key of the model's section in the run file, for error messages."""
    images: ImagesConfig
    """Limits of the size of images."""
    engine: TrainingEngineConfig
    """Division of the model over ranks."""

    @classmethod
    def of(cls, run: Run, critic: CriticConfig) -> CriticSpec:
        """The critic of a run; its model is the policy's unless the section has its own."""
        return cls(
            model=critic.model or run.model,
            head=critic.head,
            optimizer=critic.optimizer,
            max_grad_norm=critic.max_grad_norm,
            microbatch=critic.microbatch or run.trainer.microbatch,
            checkpoint=run.checkpoint,
            seed=run.seed,
            model_key="algorithm.critic.model" if critic.model else "model",
            images=run.data.images,
            engine=run.trainer.engine,
        )
