"""Protocol between scheduler and model: prefill of prompts, then decoding steps for all rows, and compaction.

A recording of a decoding step repeats kernels with the same memory and sizes. It pays where the CPU takes longer to
start kernels than a GPU to run them: small models on fast GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from strop.transfers import Positions
from strop.types import BoolArray, ImageReference, IndexArray, IntArray


@dataclass(frozen=True, slots=True)
class Compaction:
    """Moves of rows after some of `before` rows were removed; the table is then cut to `after` rows."""

    before: int
    """Number of rows before."""
    after: int
    """Number of rows after."""
    targets: Positions
    """[m] Removed rows below `after`."""
    sources: Positions
    """[m] Remaining rows from `after` on, which move to `targets`."""

    def apply(self, tensor: torch.Tensor, dim: int = 0) -> None:
        """Move the rows of a tensor along `dim`, in place; the tensor is not cut."""
        if len(self.targets):
            moved = tensor.index_select(dim, self.sources.on_device)
            tensor.index_copy_(dim, self.targets.on_device, moved)

    def new_indices(self) -> IndexArray:
        """[before] New index of each row; -1 for removed ones."""
        indices = np.full(self.before, -1)
        indices[: self.after] = np.arange(self.after)
        indices[self.targets.on_host] = -1
        indices[self.sources.on_host] = self.targets.on_host
        return indices

    def apply_to_list(self, items: list[Any]) -> None:
        """Move the items of a list, and cut it to `after` items."""
        for target, source in zip(self.targets.on_host, self.sources.on_host, strict=True):
            items[target] = items[source]
        del items[self.after :]


def plan_compaction(removed: BoolArray, device: torch.device) -> Compaction:
    """Plan the moves of tables on a device, for a [before] mask of removed rows."""
    before = len(removed)
    after = before - int(removed.sum())
    targets = np.flatnonzero(removed[:after])
    sources = np.flatnonzero(~removed[after:]) + after
    return Compaction(before, after, Positions.of(targets, device), Positions.of(sources, device))


SCORE_CHUNK_TOKENS = 512
"""Number of a prompt's tokens whose logits exist at once."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one or more requests."""

    token_ids: IntArray
    media: tuple[ImageReference, ...] = ()
    """Its images, in the order of their tokens."""
    top_logprobs: int | None = None
    """Number of most likely tokens to report with the log-prob of each of its tokens; None computes no log-probs."""
    prefix: torch.Tensor | None = None
    """[layers, 2, kv_heads, t, head_dim] Keys and values of its first t tokens, if they are known; t is less than their
    number."""

    @property
    def cached_tokens(self) -> int:
        """Number of tokens whose keys and values are known."""
        return 0 if self.prefix is None else self.prefix.shape[-2]

    @property
    def new_ids(self) -> IntArray:
        """[n] Tokens that go through the model, after the cached ones."""
        return self.token_ids[self.cached_tokens :]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs of N tokens, with the K most likely tokens at each of their positions."""

    logprobs: torch.Tensor
    """[N] float32"""
    top_ids: torch.Tensor
    """[N, K] int64"""
    top_logprobs: torch.Tensor
    """[N, K] float32"""


@dataclass(frozen=True, slots=True)
class PrefilledPrompts:
    """Results of a prefill."""

    logits: torch.Tensor
    """[prompts, V] after each prompt."""
    scores: Sequence[TokenScores | None]
    """Scores of each prompt's tokens after its first; None where they were not asked for."""


def score_tokens(
    states: torch.Tensor, to_logits: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, top: int
) -> TokenScores:
    """Scores of tokens [N] under softmax(logits), with the logits of some positions at a time.

    `to_logits` computes logits [n, V] from the states [n, ...] of positions, each before the token that it predicts.
    """
    columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    parts = zip(torch.split(states, SCORE_CHUNK_TOKENS), torch.split(tokens, SCORE_CHUNK_TOKENS), strict=True)
    for part, targets in parts:
        logprobs = to_logits(part).float().log_softmax(dim=-1)
        best = logprobs.topk(top, dim=-1)
        columns.append((logprobs.gather(1, targets[:, None])[:, 0], best.indices, best.values))
    return TokenScores(*(torch.cat(column) for column in zip(*columns, strict=True)))


class ModelRunner(Protocol):
    """Runs a model over rows and prompts, each numbered 0, 1, ... without gaps; new ones are appended."""

    vocab_size: int
    device: torch.device
    caches_prompts: bool
    """Whether rows may join a prompt in a later step; if False, only directly after its `prefill`."""
    takes_prefixes: bool
    """Whether prompts may have a `prefix`, and `copy_row` gives one."""
    max_sequence_tokens: int | None
    """Maximum number of tokens in a sequence; None if the model sets no limit."""

    def describe(self) -> str:
        """One line: implementation and data type."""
        ...

    def shared_fraction(self) -> float:
        """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
        ...

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights."""
        ...

    def release_weights(self) -> None:
        """Free the weights that do not use the memory of given tensors."""
        ...

    def has_weights(self) -> bool:
        """Whether all weights are present: False after `release_weights` until `load` has given them again."""
        ...

    def cache_tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Cache size in tokens for this number of rows and prompts of at most these lengths."""
        ...

    def should_admit(self, joining: int, running: int) -> bool:
        """Whether to admit `joining` new rows now or to wait until more can join."""
        ...

    def prefill(self, prompts: Sequence[Prompt]) -> PrefilledPrompts:
        """Prefill prompts, which take the next slots."""
        ...

    def add_rows(self, slots: Sequence[int]) -> None:
        """Append rows, each at the end of the prompt in its slot."""
        ...

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token [R]; valid until the next call."""
        ...

    def copy_row(self, row: int) -> torch.Tensor:
        """Keys and values of a row's prompt and of its own tokens but the last, as in `Prompt.prefix`."""
        ...

    def compact_rows(self, compaction: Compaction) -> None:
        """Remove finished rows."""
        ...

    def compact_prompts(self, compaction: Compaction) -> None:
        """Remove prompts that no row uses any more."""
        ...

    def clear(self) -> None:
        """Remove all rows and prompts, and free the cache."""
        ...


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
