"""Weights of a loaded model, for an inference engine in the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from strop.models.shared_tensors import SharedTensors, SharedTensorsHandle, TensorPlace
from strop.protocols import ImageProcessor, LowRankUpdate, SharedWeights, UnmergedWeights


def model_weights(
    model: PreTrainedModel,
    *,
    dtype: torch.dtype | None = None,
    image_processor: Callable[[], ImageProcessor] | None = None,
) -> SharedWeights:
    """Handle of a model's weights, without those of its adapters; `dtype` None is the model's own."""
    return SharedWeights(
        config=model.config,
        generation_config=getattr(model, "generation_config", None),
        device=model.device,
        dtype=dtype or model.dtype,
        tensors=partial(named_weights, model),
        image_processor=image_processor,
    )


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """Weights in shared memory, for inference engines in other processes of this machine, to which it can be sent."""

    config: Any
    generation_config: Any
    dtype: torch.dtype
    handle: SharedTensorsHandle
    places: Mapping[str, TensorPlace]
    """Place of each of the model's own weights, by Hugging Face's name."""
    adapter: Mapping[str, tuple[TensorPlace, TensorPlace, float]] | None
    """Places of the two matrices of each `LowRankUpdate`, and its scale; None for a model without an adapter."""
    readers: int
    """Number of engines that have a share of this machine's cores."""
    threads: int
    """Number of threads of each."""

    @classmethod
    def of(
        cls, weights: SharedWeights, shared: SharedTensors, readers: int, threads: int
    ) -> MappedWeights | None:
        """The weights that are in `shared`; None where some are not, as merged ones."""
        own = weights if weights.unmerged is None else weights.unmerged
        places = {name: shared.place_of(tensor) for name, tensor in own.tensors()}
        found = {name: place for name, place in places.items() if place is not None}
        if len(found) < len(places):
            return None
        adapter = None
        if weights.unmerged is not None:
            adapter = {}
            for name, update in weights.unmerged.adapter.items():
                a, b = shared.place_of(update.a), shared.place_of(update.b)
                assert a is not None and b is not None  # all parameters are shared
                adapter[name] = (a, b, update.scale)
        return cls(
            config=weights.config,
            generation_config=weights.generation_config,
            dtype=weights.dtype,
            handle=shared.handle,
            places=found,
            adapter=adapter,
            readers=readers,
            threads=threads,
        )

    def open(self, image_processor: Callable[[], ImageProcessor] | None) -> SharedWeights:
        """The weights in this process, which the trainer changes in place."""
        shared = SharedTensors.open(self.handle)

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            return ((name, shared.at(place)) for name, place in self.places.items())

        adapter = None
        if self.adapter is not None:
            adapter = {
                name: LowRankUpdate(shared.at(a), shared.at(b), scale)
                for name, (a, b, scale) in self.adapter.items()
            }
        return SharedWeights(
            config=self.config,
            generation_config=self.generation_config,
            device=torch.device("cpu"),
            dtype=self.dtype,
            tensors=tensors,
            image_processor=image_processor,
            unmerged=None if adapter is None else UnmergedWeights(tensors, adapter),
        )


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's tensors under Hugging Face's names, without those of an adapter."""
    get_base_model = getattr(model, "get_base_model", lambda: model)
    for name, tensor in get_base_model().state_dict().items():
        if ".lora_" not in name:
            yield plain_name(name), tensor


def plain_name(name: str) -> str:
    """Hugging Face's name of a weight that PEFT has wrapped, once or several times."""
    return ".".join(part for part in name.split(".") if part != "base_layer")
