"""Ways to run a decoding step: by its calls, or from a recording that starts all of its kernels at once.

A recording repeats kernels with the same memory and sizes. It pays where the CPU takes longer to start kernels
than a GPU to run them: small models on fast GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

Step = Callable[[], torch.Tensor]
"""A decoding step; returns logits."""
Layout = tuple[tuple[int, ...], ...]
"""Address and sizes of each tensor of a step: what recorded kernels depend on."""


class DecodingSteps(Protocol):
    """Runs the steps of one model. Until rows or caches change, steps differ in the contents of their memory only."""

    def padded_count(self, count: int) -> int:
        """Number of rows, or of prompts, for which a step computes while `count` are in use."""
        ...

    def run(self, step: Step, memory: Iterable[torch.Tensor]) -> torch.Tensor:
        """Result of a step that reads and writes `memory` and no other tensors; it is valid until the next run."""
        ...

    def clear(self) -> None:
        """Free the memory of the last run."""
        ...


class DirectSteps:
    """Calls each step, for the rows in use only."""

    def padded_count(self, count: int) -> int:
        """The number itself."""
        return count

    def run(self, step: Step, memory: Iterable[torch.Tensor]) -> torch.Tensor:
        """Result of the step."""
        return step()

    def clear(self) -> None:
        """Nothing: the result of a step belongs to its caller."""


class StepRecording(Protocol):
    """Kernels of a step."""

    @property
    def result(self) -> torch.Tensor:
        """Result of the step, which `replay` overwrites."""
        ...

    def replay(self) -> None:
        """Start all kernels."""
        ...


class RecordedSteps:
    """Records the second step with the same memory, and replays it until the memory is another.

    The first step with new memory is a call: memory that serves one step is not recorded, and libraries
    allocate before a recording what they need.
    """

    def __init__(self, record: Callable[[Step], StepRecording]) -> None:
        """`record` gives the recording of a step, which its first replay runs."""
        self._record = record
        self._recording: StepRecording | None = None
        self._layout: Layout = ()

    def padded_count(self, count: int) -> int:
        """The next multiple of 8, or from 64 on of a larger power of two: a recording outlasts small changes."""
        step = 1 << max(3, count.bit_length() - 3)
        return -(-count // step) * step

    def run(self, step: Step, memory: Iterable[torch.Tensor]) -> torch.Tensor:
        """Result of the step."""
        layout = tuple((tensor.data_ptr(), *tensor.shape) for tensor in memory)
        if layout != self._layout:
            self.clear()
            self._layout = layout
            return step()
        if self._recording is None:
            self._recording = self._record(step)
        self._recording.replay()
        return self._recording.result

    def clear(self) -> None:
        """Delete the recording, with the memory of its result and of all that it computes on the way."""
        self._layout = ()
        self._recording = None


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """Kernels of a step on a GPU."""

    graph: torch.cuda.CUDAGraph
    result: torch.Tensor

    def replay(self) -> None:
        """Start all kernels on the current stream."""
        self.graph.replay()


class CudaGraphRecorder:
    """Records steps as CUDA graphs, without waiting for the GPU."""

    def __init__(self, device: torch.device) -> None:
        """Record on a stream of this GPU."""
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, step: Step) -> CudaGraph:
        """Record a step, which is not run."""
        # torch.cuda.graph() would wait for the GPU, and return all unused memory to the driver.
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may allocate meanwhile
            try:
                result = step()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return CudaGraph(graph, result)
