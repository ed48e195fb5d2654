"""Workers of one machine that train one copy of a model's weights, in shared memory.

Each worker adds the gradients of its micro-batches in memory of its own that the others map. At an update each worker
owns some of the parameters: it sums their gradients over the workers, in the order of the workers, and updates them
with the optimizer's state that it alone holds. The new weights are there for all, and nothing is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.models.shared_weights import SharedTensors, fuse_storage, module_tensors, use_tensors
from strop.training.mixed_precision import ComputeCopy, trainable_parameters
from strop.training.model_state import TorchState, load_optimizer_state
from strop.training.optimizers import call_with_gradients
from strop.training.parallel.parallelize import DirectCall, LoadedModel, ModelCall, SingleDevice


@dataclass(frozen=True, slots=True)
class SharedMemoryParallelizer:
    """Loads models in each worker, which then all use the first one's tensors; every worker calls the same methods."""

    device: torch.device
    """The CPU."""
    worker: int
    workers: int

    @property
    def sequence_group(self) -> None:
        """None: each worker has all tokens of its micro-batches."""
        return None

    def load_policy(self, section: ModelConfig, head: HeadInit | None = None) -> LoadedModel:
        return self._shared(SingleDevice(self.device).load_policy(section, head))

    def load_reference(self, section: ModelConfig) -> ModelCall:
        model = SingleDevice(self.device).load_reference(section)
        assert isinstance(model, DirectCall)
        self._share({"model": model.model})
        return model

    def load_critic(self, section: ModelConfig, head: HeadInit) -> LoadedModel:
        return self._shared(SingleDevice(self.device).load_critic(section, head))

    def _shared(self, loaded: LoadedModel) -> LoadedModel:
        copy = loaded.compute_copy
        fuse_storage(loaded.model if copy is None else copy.model)  # as the sampler reads the weights
        modules = {"model": loaded.model} if copy is None else {"model": loaded.model, "copy": copy.model}
        shared = self._share(modules)
        optimizer = SharedMemoryOptimizer(loaded.model, copy, self.worker, self.workers)
        return replace(loaded, sharded_optimizer=optimizer, shared=shared)

    def _share(self, modules: Mapping[str, nn.Module]) -> SharedTensors:
        """Let modules use the first worker's tensors."""
        tensors = module_tensors(modules)
        own = SharedTensors.of(tensors if self.worker == 0 else {})
        first = _gather(own, self.worker, self.workers)[0]
        use_tensors(tensors, first)
        return first


class SharedMemoryOptimizer:
    """Backward passes and updates of one worker; see `strop.training.parallel.parallelize.ShardedOptimizer`."""

    def __init__(self, model: nn.Module, copy: ComputeCopy | None, worker: int, workers: int) -> None:
        """`copy` runs forward passes in place of `model`, if there is one."""
        self._names, self._masters = zip(*trainable_parameters(model).items(), strict=True)
        self._computing = list(trainable_parameters(copy.model if copy else model).values())
        self._worker, self._workers = worker, workers
        self._owned = _shares([p.numel() for p in self._masters], workers)[worker]
        """Numbers of the parameters that this worker updates."""
        flags, norms = torch.zeros(len(self._masters), dtype=torch.bool), torch.zeros(len(self._masters))
        gradients: dict[str, Tensor] = {str(number): p for number, p in enumerate(self._masters)}
        everyone = _gather(
            SharedTensors.zeros({**gradients, "present": flags, "norms": norms}), worker, workers
        )
        self._gradients = [
            [each.tensors[str(number)] for number in range(len(self._masters))] for each in everyone
        ]
        """Gradient of each parameter, by worker."""
        self._present = [each.tensors["present"] for each in everyone]
        """Whether there is a gradient of each parameter, by worker."""
        self._norms = everyone[0].tensors["norms"]
        """Norm of each parameter's summed gradient, which its owner writes."""
        call_with_gradients(self._computing, self._collect)

    def attach(self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None) -> _WorkerState:
        self._optimizer, self._max_grad_norm = optimizer, max_grad_norm
        owned = {self._names[number] for number in self._owned}
        parameters = dict(zip(self._names, self._masters, strict=True))
        return _WorkerState(optimizer, parameters, owned, self._workers)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self) -> float:
        for parameter in self._masters:
            parameter.grad = None  # the optimizer skips what this worker does not own
        owned = [number for number in self._owned if self._sum(number)]
        for number in owned:
            self._norms[number] = torch.linalg.vector_norm(self._masters[number].grad)
        distributed.barrier()  # the norms of all gradients are there
        present = torch.stack(self._present).any(0)
        norm = torch.linalg.vector_norm(self._norms[present])
        if torch.isfinite(norm):
            parameters = [self._masters[number] for number in owned]
            if self._max_grad_norm is not None:
                nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
            self._optimizer.step()
            for number in owned:
                if self._computing[number] is not self._masters[number]:
                    self._computing[number].copy_(self._masters[number])
        distributed.barrier()  # no worker reads gradients any more
        self._present[self._worker].zero_()
        for parameter in self._masters:
            parameter.grad = None
        return float(norm)

    def _sum(self, number: int) -> bool:
        """Set the gradient of an own parameter to the sum over the workers; returns whether there is one."""
        given = [
            gradients[number]
            for gradients, present in zip(self._gradients, self._present, strict=True)
            if present[number]
        ]
        if not given:
            return False
        total = self._gradients[self._worker][number]
        first, *others = given
        if total is first:
            for each in others:
                total += each
        else:  # a sum in the order of the workers, which may read this worker's own gradient last
            total.copy_(sum(others, start=first))
        self._masters[number].grad = total
        return True

    @torch.no_grad()
    def _collect(self, number: int, computing: Tensor) -> None:
        """Move a gradient that a backward pass has made into shared memory; to one that is there, it has been added."""
        gradient, present = self._gradients[self._worker][number], self._present[self._worker]
        if computing.grad is gradient:
            return
        assert computing.grad is not None
        if present[number]:
            gradient += computing.grad
        else:
            gradient.copy_(computing.grad)
            present[number] = True
        computing.grad = gradient if computing is self._masters[number] else None


class _WorkerState(TorchState):
    """State of a model whose optimizer's state is divided over workers, and whose weights all of them have."""

    divides_optimizer = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        owned: Set[str],
        workers: int,
    ) -> None:
        super().__init__(parameters, optimizer)
        self._owned, self._workers = owned, workers

    def optimizer_scalars(self) -> str:
        """Numbers of all workers, which call it together."""
        texts: list[Any] = [None] * self._workers
        distributed.all_gather_object(texts, super().optimizer_scalars())
        parts = [json.loads(text) for text in texts]
        return (
            json.dumps(parts[0] | {"state": {k: v for part in parts for k, v in part["state"].items()}})
            + "\n"
        )

    def load_optimizer(self, folder: Path) -> None:
        load_optimizer_state(folder, self._optimizer, self._names, only=self._owned)


def _gather(own: SharedTensors, worker: int, workers: int) -> list[SharedTensors]:
    """The shared tensors of each worker, which all call it together."""
    handles: list[Any] = [None] * workers
    distributed.all_gather_object(handles, own.handle)
    everyone = [own if number == worker else SharedTensors.open(each) for number, each in enumerate(handles)]
    distributed.barrier()  # all have opened them
    return everyone


def _shares(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Numbers of the parameters that each worker updates, in ascending order: about as many elements for each."""
    shares: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        least = min(range(workers), key=totals.__getitem__)
        shares[least].append(number)
        totals[least] += sizes[number]
    return [sorted(share) for share in shares]
