"""Auxiliary models: models that are not trained and answer chat requests of workflows and judges."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import AuxiliaryModelConfig, NativeEngineConfig
from strop.errors import ModelError
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import load_engine
from strop.inference.served_model import ServedModel, ServedModelSettings
from strop.models.loading import load_tokenizer
from strop.protocols import InferenceEngine
from strop.workers.start import LOCAL, WorkerPlacement


def load_auxiliary_model(
    section: AuxiliaryModelConfig,
    device: torch.device,
    *,
    seed: int,
    placement: WorkerPlacement = LOCAL,
    max_restarts: int = 0,
) -> ServedModel:
    """Load the model; an engine of a serving library does so in a process of its own, at `placement`.

    Equal requests without a seed get equal responses. Raises `ModelError` for a model or a tokenizer that cannot be
    used, and what `InferenceEngine.start` raises.
    """
    create = AuxiliaryEngineFactory(section, device)
    settings = ServedModelSettings(
        section.name,
        create.files,
        section.engine,
        section.max_response_tokens,
        chat_template=section.chat_template,
        seed=seed,
    )
    try:
        if isinstance(section.engine, NativeEngineConfig):
            return ServedModel(settings, create)
        return ServedModel(settings, lambda: engine_in_own_process(create, placement, max_restarts))
    except ModelError as error:
        raise ModelError(f"rollout.auxiliary_models ({section.name}): {error}") from error


@dataclass(frozen=True, slots=True)
class AuxiliaryEngineFactory:
    """Builds the engine of an auxiliary model, in the process that runs it."""

    section: AuxiliaryModelConfig
    device: torch.device

    @property
    def files(self) -> ModelConfig:
        """The model's files."""
        section = self.section
        return ModelConfig(
            path=section.path,
            tokenizer=section.tokenizer,
            dtype=section.dtype,
            trust_remote_code=section.trust_remote_code,
        )

    def __call__(self) -> InferenceEngine:
        """Load the tokenizer and the model."""
        return load_engine(self.section.engine, self.files, load_tokenizer(self.files), self.device)


def engine_in_own_process(
    create: AuxiliaryEngineFactory, placement: WorkerPlacement, max_restarts: int
) -> InferenceEngine:
    """The engine of a serving library, in a process that is restarted up to `max_restarts` times."""
    engine = create.section.engine
    return EnginePool(
        [EngineSpec(f"auxiliary-{create.section.name}", create)],
        placement,
        max_restarts,
        hang_timeout_seconds=engine.hang_timeout_seconds,
        start_timeout_seconds=engine.start_timeout_seconds,
    )
