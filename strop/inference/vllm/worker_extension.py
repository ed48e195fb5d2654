"""Methods that vLLM adds to its workers: loading of weights from a file, and from the trainer's memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.inference.weight_transfer import BucketReceiver, Rendezvous, UntilBroken, gpu_uuid

_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"
"""Logger that warns at every load of layers without weights of their own, such as a tied output head."""


class StropWorkerExtension:
    """Mixin of vLLM's worker class, in each of the engine's processes."""

    device: Any
    model_runner: Any
    rank: int
    strop_receiver: BucketReceiver | None = None

    def strop_prepare(self) -> None:
        """Have the generators of seeded requests accept vLLM's correction of their position on the CPU."""
        if self.device.type == "cpu":
            torch.Generator = CpuGenerator  # type: ignore[misc]

    def strop_gpu(self) -> str | None:
        """The UUID of the worker's GPU; None on the CPU."""
        return gpu_uuid(self.device)

    def strop_load_weights(self, path: str) -> None:
        """Load the weights of a safetensors file, or of a folder's files; each worker keeps its shard."""
        self._strop_load(read_weights(Path(path)))

    def strop_receive_weights(
        self, rendezvous: Mapping[str, Any], buckets: Sequence[Mapping[str, Any]], host: str
    ) -> str | None:
        """Load the weights that the trainer broadcasts, as rank 1 and above of a process group with it.

        Returns the reason if they have not all arrived; the model then has a mixture of weights until the next load.
        """
        self.strop_receiver = self.strop_receiver or BucketReceiver(1 + self.rank, self.device)
        arriving = UntilBroken(self.strop_receiver.receive(Rendezvous(**rendezvous), buckets, host))
        self._strop_load(arriving)
        if arriving.reason is not None:
            self.strop_receiver.leave()
        return arriving.reason

    def _strop_load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        logging.getLogger(_RELOAD_LOGGER).setLevel(logging.ERROR)
        model = self.model_runner.model
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            _discard_packed_experts(model)
        converted = checkpoint_weights(weights, self.model_runner.model_config.hf_config)
        self.reload_weights(weights_iterator=converted)  # type: ignore[attr-defined]
        if on_cpu:
            _pack_output_head(model)


class CpuGenerator(torch.Generator):
    """Generator without a position, which vLLM sets back where it discards a token.

    torch's raises an error there, which ends the engine: vLLM discards the token of a pass that computes only the
    beginning of a prompt. The next draw is then another one, from the same distribution.
    """

    def get_offset(self) -> int:
        """Position, which nothing depends on."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Leave the generator as it is."""
        return self


def _discard_packed_experts(model: nn.Module) -> None:
    """Make the reload pack the experts again: on the CPU they are packed only while they have no kernel."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None  # type: ignore[union-attr]


def _pack_output_head(model: nn.Module) -> None:
    """Pack the output head again: on the CPU a reload leaves a head that is tied to the embeddings as it was."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for holder in (model, getattr(model, "language_model", None)):
        head = getattr(holder, "lm_head", None)
        if head is not None:
            dispatch_cpu_unquantized_gemm(getattr(head, "base_layer", head), remove_weight=False)
