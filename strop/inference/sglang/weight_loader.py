"""Loading in SGLang's model processes, of weights from a file and from the trainer's memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.inference.weight_transfer.bucket_receiver import BucketReceiver, UntilBroken
from strop.inference.weight_transfer.process_group import Rendezvous

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
