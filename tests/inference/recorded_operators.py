"""Stand-in for CUDA graphs on a CPU: recorded operators that repeat with the same memory and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from strop.inference.native.model.runner import DirectSteps, RecordedSteps, Step


class OperatorRecorder:
    """Records steps, and counts how often each was replayed."""

    def __init__(self) -> None:
        self.replays: list[int] = []

    def __call__(self, step: Step) -> RecordedOperators:
        self.replays.append(0)
        return RecordedOperators(step, self)


class RecordedOperators:
    """Operators of a step. Recording runs them, unlike that of a CUDA graph: the first replay is the recording."""

    def __init__(self, step: Step, recorder: OperatorRecorder) -> None:
        self._recorder = recorder
        with _Calls() as recorded:
            self.result = step()
        self._calls = recorded.calls

    def replay(self) -> None:
        self._recorder.replays[-1] += 1
        if self._recorder.replays[-1] == 1:
            return
        for call in self._calls:
            again = call.function(*call.arguments, **call.options)
            for recorded, new in zip(_tensors(call.results), _tensors(again), strict=True):
                if recorded.data_ptr() != new.data_ptr():  # neither a view nor a change in place
                    recorded.copy_(new)


class CheckedSteps(DirectSteps):
    """Calls steps for as many rows as recordings have, and checks that they use their memory and nothing else."""

    padded_count = RecordedSteps.padded_count

    def run(self, step: Step, memory: Iterable[torch.Tensor]) -> torch.Tensor:
        with _Calls() as recorded:
            result = step()
        known = list(memory)
        device, storages = known[0].device, {_storage(tensor) for tensor in known}
        for call in recorded.calls:
            for tensor in _tensors((call.arguments, call.options)):
                assert _storage(tensor) in storages, (
                    f"{call.function} reads a tensor that is not in the step's memory"
                )
            for tensor in _tensors(call.results):
                assert tensor.device == device, f"{call.function} makes a tensor on {tensor.device}"
                storages.add(_storage(tensor))
        return result


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    results: Any


class _Calls(TorchDispatchMode):
    """Keeps all tensors of a step, so that none gets the memory of another."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, kwargs or {}, result))
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
