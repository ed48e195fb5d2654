"""Models for DeepSpeed's ZeRO: trained ones in its engine, frozen ones sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from strop.config.deepspeed import engine_config, read_config, with_hidden_size, zero_settings
from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig
from strop.errors import ModelError
from strop.models.loading import load_trained
from strop.models.packed_attention.forward import base_model, split_sequences
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.models.value_head import head_of
from strop.models.value_model import load_value_model
from strop.training.parallel.fsdp2 import Fsdp2Parallelizer
from strop.training.parallel.mesh import RankMeshes
from strop.training.parallel.parallelize import LoadedModel, ModelCall, with_adapter
from strop.training.zero.model import ZeroModel

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class ZeroParallelizer:
    """Loads models for ZeRO; every rank calls the same methods, and reads a trained model whole before its division."""

    frozen: Fsdp2Parallelizer
    """Loader of the reference model and of teachers, of which each rank holds its shard."""
    config: Mapping[str, Any]
    """DeepSpeed configuration, with `auto` for sizes that depend on the model."""

    @classmethod
    def of(cls, engine: DeepSpeedEngineConfig, device: torch.device, meshes: RankMeshes) -> ZeroParallelizer:
        """`device` is this rank's own, and `meshes` are those of all ranks."""
        offloads = zero_settings(engine, read_config(engine)).offload_parameters
        frozen = Fsdp2EngineConfig(ranks=engine.ranks, reference_cpu_offload=offloads)
        return cls(Fsdp2Parallelizer(device, meshes, frozen), engine_config(engine, device.type))

    @property
    def sequence_group(self) -> SequenceGroup | None:
        return self.frozen.sequence_group

    @property
    def device(self) -> torch.device:
        return self.frozen.device

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        model = with_adapter(load_trained(section, head, device=_CPU), section)
        base = base_model(model)
        if head is not None:
            return self._in_engine(model, model, head_of(base), section)
        output = base.get_output_embeddings()  # type: ignore[no-untyped-call]
        if type(output) is not nn.Linear:
            raise ModelError(
                "trainer.engine deepspeed needs a language-model head that is a plain linear layer, and this model's "
                f"is a {type(output).__name__}. Add the head to model.lora.exclude, or write engine: fsdp2."
            )
        return self._in_engine(model, model, output, section)

    def load_reference(self, section: ModelConfig) -> ModelCall:
        return self.frozen.load_reference(section)

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        model = load_value_model(section, head=head, device=_CPU)
        return self._in_engine(model, model.decoder, model.head, section)

    def _in_engine(
        self, model: nn.Module, decoder: nn.Module, head: nn.Linear, section: ModelConfig
    ) -> LoadedModel:
        base = base_model(decoder)
        if self.sequence_group is not None:
            split_sequences(decoder, self.sequence_group)
        config = with_hidden_size(self.config, base.config.get_text_config().hidden_size)
        compute = section.compute_dtype or section.dtype
        for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            config[name] = {**config.get(name, {}), "enabled": compute == dtype}
        # DeepSpeed takes a layer's gradients for complete once that of its input is, so that the input needs one.
        base.enable_input_require_grads()  # type: ignore[no-untyped-call]
        names = set(base._no_split_modules or ())
        layers = {type(module) for module in base.modules() if type(module).__name__ in names}
        call = ZeroModel(model, sorted(layers, key=str), head, self.device, config)
        return LoadedModel(model, decoder, call, sharded_optimizer=call)
