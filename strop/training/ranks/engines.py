"""The training engines of several ranks, driven from the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.config.schema import Run
from strop.config.schema.critic import Critic
from strop.config.schema.run import Writers
from strop.models.export import attend_export
from strop.protocols import LossFn, ValueLossFn
from strop.training.learner import summed
from strop.training.place import Shards
from strop.training.ranks.deal import OfTargets, deal, on
from strop.training.ranks.group import RankGroup
from strop.training.ranks.part import rng_name
from strop.training.ranks.snapshot import RankedSnapshot
from strop.training.single import SingleEngine
from strop.training.state import read_tensors, rng_tensors, set_rng
from strop.training.value import ValueEngine
from strop.types import GlobalCounts, MicroBatch

CPU = torch.device("cpu")


class _Ranked:
    """What a policy's engine and a critic's have in common."""

    device = CPU
    """Micro-batches are packed here, and go from here to their ranks."""

    def __init__(self, group: RankGroup, name: str, own: Any, writers: Writers) -> None:
        """`own` is this rank's engine; the others know theirs by `name`."""
        self._group = group
        self._name = name
        self._own = own
        self._writers = writers
        self.shares_prompts: bool = own.shares_prompts

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next update."""
        self._on_all(methodcaller("set_lr", lr))

    def set_weight_decay(self, weight_decay: float) -> None:
        """The same for the weight decay."""
        self._on_all(methodcaller("set_weight_decay", weight_decay))

    def snapshot(self) -> RankedSnapshot:
        """Each rank's part of the state, until it is written or training goes on."""
        return RankedSnapshot(self._group, self._name, self._writers)

    def step(self) -> float:
        """Clip by the norm over all ranks, and update; returns the norm before clipping."""
        return float(self._on_all(methodcaller("step"))[0])

    def _on_all(self, call: Callable[[Any], Any]) -> list[Any]:
        """Each rank's result of the same call, this one's first."""
        with self._group.others(self._name, call) as others:
            mine = call(self._own)
        return [mine, *others]

    def _learn(self, micro_batches: Sequence[MicroBatch], *args: Any, **kwargs: Any) -> Mapping[str, float]:
        """Each rank's `forward_backward` of its share; the sums over ranks."""
        shares = deal(micro_batches, self._group.ranks)
        mine, *others = (partial(_learn, share=share, args=args, kwargs=kwargs) for share in shares)
        with self._group.others(self._name, *others) as theirs:
            ours = mine(self._own)
        return summed([ours, *theirs])

    def _ask(
        self, ask: Callable[..., list[Tensor]], micro_batches: Sequence[MicroBatch], check: Callable[[], None]
    ) -> list[Tensor]:
        """What `ask` says of each micro-batch, one for each rank at a time."""
        found: list[Tensor] = []
        ranks = self._group.ranks
        for start in range(0, len(micro_batches), ranks):
            shares = deal(micro_batches[start : start + ranks], ranks)
            mine, *others = (partial(_asked, ask=ask, share=share) for share in shares)
            with self._group.others(self._name, *others) as theirs:
                ours = mine(self._own)
            found += [values for share in (ours, *theirs) for values in share]
            check()
        return found[: len(micro_batches)]


class RankedEngine(_Ranked):
    """A policy's training engine on several ranks; of each the same part of every parameter."""

    def __init__(self, group: RankGroup, run: Run) -> None:
        self._own: SingleEngine
        build = partial(_policy, run, group.device.type)
        super().__init__(group, "policy", group.make("policy", build), run.checkpoint.writers)
        self.why_not_shared = self._own.why_not_shared
        self.compute_dtype: torch.dtype = getattr(torch, run.model.compute_dtype or run.model.dtype)
        kind = "processes" if group.device.type == "cpu" else "GPUs"
        self.description = f"in parts on {group.ranks} {kind} (FSDP2)"

    def forward_backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        counts: GlobalCounts,
        *,
        entropy: bool,
        divergence: bool = False,
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself."""
        kwargs = {"entropy": entropy, "divergence": divergence}
        return self._learn(micro_batches, OfTargets(loss_fn), counts, **kwargs)

    def logprobs(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        reference: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """[T] of each, without gradient, by the current weights or by the reference's."""
        return self._ask(partial(SingleEngine.logprobs, reference=reference), micro_batches, check)

    def divergences(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] of each, KL(current weights || reference) over the whole vocabulary, without gradient."""
        return self._ask(SingleEngine.divergences, micro_batches, lambda: None)

    @property
    def computing(self) -> PreTrainedModel:
        """This rank's part of the model."""
        return self._own.computing

    def lay_out_for_sampling(self) -> None:
        """Nothing: a sampler wants whole weights, and has its own."""

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The full weights, adapters merged, in the compute type; one at a time is whole."""
        with self._group.others(self._name, _attend_weights):
            for name, weight in self._own.iter_weights():
                yield name, weight.to(self.compute_dtype) if weight.is_floating_point() else weight

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        with self._group.others(self._name, _attend_export):
            self._own.export(tokenizer, folder)

    def load(self, folder: Path) -> None:
        """Take back what a snapshot wrote, of however many ranks. Raises CheckpointError if it is of another
        model. What is drawn in training (dropout) goes on exactly where the ranks are as many."""
        calls = [partial(_load, folder=folder, rank=rank) for rank in range(1, self._group.ranks)]
        with self._group.others(self._name, *calls):
            self._own.load(folder)


class RankedValueEngine(_Ranked):
    """A critic's training engine on several ranks."""

    def __init__(self, group: RankGroup, run: Run, critic: Critic) -> None:
        self._own: ValueEngine
        build = partial(_critic, run, critic, group.device.type)
        super().__init__(group, "critic", group.make("critic", build), run.checkpoint.writers)

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], loss_fn: ValueLossFn, counts: GlobalCounts
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself."""
        return self._learn(micro_batches, OfTargets(loss_fn), counts)

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] of each, without gradient, by the current weights."""
        return self._ask(ValueEngine.values, micro_batches, lambda: None)

    def load(self, folder: Path) -> None:
        """Take back what a snapshot wrote. Raises CheckpointError if it is of another model."""
        self._on_all(methodcaller("load", folder))


def _shards(device: str) -> Shards:
    number = [torch.cuda.current_device()] if device == "cuda" else []
    return Shards.over_all_ranks(torch.device(device, *number))


def _policy(run: Run, device: str) -> SingleEngine:
    engine = SingleEngine(run, _shards(device))
    torch.manual_seed(run.seed + torch.distributed.get_rank())  # each rank's dropout is its own
    return engine


def _critic(run: Run, critic: Critic, device: str) -> ValueEngine:
    return ValueEngine(run, critic, _shards(device))


def _learn(engine: Any, share: Sequence[MicroBatch], args: Any, kwargs: Any) -> Mapping[str, float]:
    learned: Mapping[str, float] = engine.forward_backward(
        [on(engine.device, micro_batch) for micro_batch in share], *args, **kwargs
    )
    return learned


def _asked(engine: Any, ask: Callable[..., list[Tensor]], share: Sequence[MicroBatch]) -> list[Tensor]:
    return [values.cpu() for values in ask(engine, [on(engine.device, batch) for batch in share])]


def _attend_weights(engine: SingleEngine) -> None:
    for _ in engine.iter_weights():
        pass


def _attend_export(engine: SingleEngine) -> None:
    attend_export(engine.master)


def _load(engine: SingleEngine, folder: Path, rank: int) -> None:
    drawn = rng_tensors(engine.device)
    engine.load(folder)
    states = folder / rng_name(rank)
    set_rng(engine.device, read_tensors(states) if states.exists() else drawn)
