"""Weights in SGLang's model processes, from a file and from memory; requests and completions of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from strop.config.schema.model import ModelConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.inference.completion import StopStringMatcher, cut_at_stop
from strop.inference.request_validation import validate_request
from strop.inference.serving.backend import RequestImages
from strop.inference.sglang.requests import check_support, stop_plan, to_completion, to_sglang
from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.inference.weight_transfer import BucketReceiver, Rendezvous, UntilBroken
from strop.models.loading import load_config, load_generation_config
from strop.types import Completion, SampleRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NamedTensors = Sequence[tuple[str, torch.Tensor]]
FAILED, BROKEN = ".failed", ".broken"
"""Endings of the reports of a load that raised an exception, and of a transfer that did not end."""

_CHECKPOINT_PREFIXES = {"model.language_model.": "model.", "model.visual.": "visual."}
"""Prefixes of the parts of a Qwen-VL model in checkpoints, by those in transformers."""


def load_weight_file(model: nn.Module, named_tensors: NamedTensors) -> None:
    """Load a safetensors file, or a folder's files; each process keeps its shard.

    SGLang calls it with a list of named tensors; here the two names are the paths of the weights and of a folder for
    reports, and the tensors are empty.
    """
    (weights, _), (reports, _) = named_tensors
    with _reporting(Path(reports)):
        _load(model, read_weights(Path(weights)))


def receive_weights(model: nn.Module, named_tensors: NamedTensors) -> None:
    """Load the weights that the trainer broadcasts, as rank 1 and above of a process group with it.

    The two names are the offer as JSON and the path of a folder for reports.
    """
    (offer, _), (reports, _) = named_tensors
    with _reporting(Path(reports)):
        values = json.loads(offer)
        receiver = _receiver_of(model)
        arriving = UntilBroken(
            receiver.receive(Rendezvous(**values["rendezvous"]), values["buckets"], values["host"])
        )
        _load(model, arriving)
        if arriving.reason is not None:
            receiver.leave()
            report = Path(reports) / f"{torch.distributed.get_rank()}{BROKEN}"
            report.write_text(arriving.reason, encoding="utf-8")


@cache
def _receiver_of(model: nn.Module) -> BucketReceiver:
    """The receiver of this process, which keeps its process group from one transfer to the next."""
    device = next(model.parameters()).device
    return BucketReceiver(1 + torch.distributed.get_rank(), device)


@contextmanager
def _reporting(folder: Path) -> Iterator[None]:
    """Report an exception in a file, since it would end SGLang's process."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (raised in the process of the engine)
        report = folder / f"{torch.distributed.get_rank()}{FAILED}"
        report.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def _load(model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    tensors = checkpoint_weights(weights, model.config)
    model.load_weights((_checkpoint_name(name), tensor) for name, tensor in tensors)
    _discard_image_features()


def _checkpoint_name(name: str) -> str:
    for prefix, replacement in _CHECKPOINT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _discard_image_features() -> None:
    """Empty the cache of image features, which SGLang keeps when it flushes the KV cache."""
    from sglang.srt.managers import mm_schedule

    if mm_schedule.embedding_cache is not None:
        mm_schedule.embedding_cache.clear()


class RequestConverter:
    """Converts requests with a model's vocabulary, end tokens and tokenizer."""

    def __init__(
        self, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, images: RequestImages | None = None
    ) -> None:
        """`images` is None where requests cannot have images."""
        self._images = images
        self.config = load_config(model)
        """The model's configuration."""
        self.vocab_size = int(self.config.get_text_config().vocab_size)
        self._eos_ids = eos_token_ids(self.config, load_generation_config(model), tokenizer)
        self._stop_strings = StopStringMatcher(tokenizer)

    def check(self, request: SampleRequest, max_sequence_tokens: int) -> None:
        """Raise `InferenceError` for an invalid request, and for one that SGLang would change."""
        processor = None if self._images is None else self._images.processor
        validate_request(request, self.vocab_size, max_sequence_tokens, processor)
        check_support(request)

    def arguments(self, request: SampleRequest) -> dict[str, Any]:
        """SGLang's arguments of a request."""
        plan = stop_plan(request.sampling, self._eos_ids, self.vocab_size)
        arguments = to_sglang(request, plan, self.vocab_size)
        if self._images is None or not request.media:
            return arguments
        # The pixels as the trainer gets them: SGLang would otherwise scale the images itself, and write the prompt as
        # text and tokenize it again.
        inputs = self._images.processor().process(request.media)
        assert inputs.grid is not None
        pixels = {"pixel_values": inputs.pixel_values, "image_grid_thw": torch.from_numpy(inputs.grid)}
        return arguments | {"image_data": [{"format": "processor_output", **pixels}]}

    def completion(
        self, request: SampleRequest, output: Mapping[str, Any], version_of: Callable[[str], int]
    ) -> Completion:
        """The completion of a finished request, up to its first stop; `version_of` gives the version of a label of the
        weights."""
        plan = stop_plan(request.sampling, self._eos_ids, self.vocab_size)
        completion = to_completion(request, output, version_of)
        return cut_at_stop(
            completion,
            request.sampling.min_tokens,
            self._stop_strings,
            tokens=plan.cut_tokens,
            strings=plan.cut_strings,
        )
