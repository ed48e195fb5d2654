"""Receiver of buckets in one process: joins the process groups of successive transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from strop.inference.weight_transfer.buckets import ANNOTATION_PREFIX, Bucket
from strop.inference.weight_transfer.process_group import (
    ProcessGroupBroken,
    Rendezvous,
    WeightProcessGroup,
)
from strop.inference.weight_transfer.shared_buffer import SharedBufferGroup, join_group
from strop.workers.waiting import StopCheck, call_with_checks, never_stop


class BucketReceiver:
    """Receives weights as one rank of a process group, which it keeps for the next transfer."""

    def __init__(self, rank: int, device: torch.device, check: StopCheck = never_stop) -> None:
        """`device` is that of the weights under NCCL and CUDA IPC; `check` is called during waits."""
        self._rank = rank
        self._device = device
        self._check = check
        self._group: WeightProcessGroup | SharedBufferGroup | None = None
        self._rendezvous: Rendezvous | None = None

    def receive(
        self, rendezvous: Rendezvous, buckets: Sequence[Mapping[str, Any]], host: str
    ) -> Iterator[tuple[str, Tensor]]:
        """The weights of these buckets, as they arrive, at `host`, an address of this machine.

        Raises `ProcessGroupBroken` if the trainer or another receiver is gone.
        """
        if self._group is None or rendezvous != self._rendezvous:
            self.leave()
            self._group = call_with_checks(
                lambda: join_group(rendezvous, self._rank, host, self._device), self._check
            )
            self._rendezvous = rendezvous
        for metadata in buckets:
            bucket = Bucket.allocate(metadata, self._group.device)
            self._group.broadcast(bucket.data, self._check)
            yield from bucket.weights()

    def leave(self) -> None:
        """Leave the process group, if there is one."""
        self._group = self._rendezvous = None


class UntilBroken:
    """Weights up to the end of the transfer, or to its failure.

    An exception in the middle of vLLM's reload would leave half of a layer behind, which the next reload would complete
    with new weights; an end of the weights does not. Tensors that no engine loads are left out.
    """

    def __init__(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._weights = weights
        self.reason: str | None = None
        """Reason of the failure; None while there is none."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name, tensor in self._weights:
                if not name.startswith(ANNOTATION_PREFIX):
                    yield name, tensor
        except ProcessGroupBroken as error:
            self.reason = str(error) or "the trainer is gone"
