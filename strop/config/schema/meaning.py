"""What means nothing under the chosen algorithm, and what it lacks: said before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strop.config.schema.algorithm import Dpo, Mix, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.rollout import Rollout

if TYPE_CHECKING:
    from strop.config.schema.run import Run

_RESPONSE = "the column of the answers to imitate, such as `response: messages`"
_PAIR = "the columns of the better and the worse answer, such as `chosen: chosen`, `rejected: rejected`"


def check_meaning(run: Run) -> None:
    """Raises ValueError, which names the key, for the first thing that does not fit `algorithm.type`."""
    for fault in _faults(run):
        raise ValueError(fault)


def _faults(run: Run) -> Iterator[str]:
    data, kind = run.data, run.algorithm.type
    match run.algorithm:
        case Sft():
            yield from _columns(data.train, "data.train", kind, needs=("response",), hint=_RESPONSE)
            for taskset in data.eval:
                if taskset.response is None:
                    yield from _columns(taskset, f"data.eval ({taskset.name})", kind, needs=(), hint="")
        case Dpo():
            pair = ("chosen", "rejected")
            yield from _columns(data.train, "data.train", kind, needs=pair, hint=_PAIR)
            for taskset in data.eval:
                if taskset.chosen or taskset.rejected or taskset.response:
                    where = f"data.eval ({taskset.name})"
                    yield from _columns(taskset, where, kind, needs=pair, hint=_PAIR)
        case _:
            yield from _columns(data.train, "data.train", kind, needs=(), hint="")
            for taskset in data.eval:
                yield from _columns(taskset, f"data.eval ({taskset.name})", kind, needs=(), hint="")
    yield from _expert(run)
    if data.queue is not None:
        yield from _queue(run)
    if isinstance(run.algorithm, Sft | Dpo):
        yield from _only_for_rollouts(run)


def _columns(taskset: Taskset, where: str, kind: str, *, needs: tuple[str, ...], hint: str) -> Iterator[str]:
    for column in ("response", "chosen", "rejected"):
        written = getattr(taskset, column) is not None
        if column in needs and not written:
            yield f"{where}.{column}: missing. algorithm {kind} needs {hint}"
        if column not in needs and written:
            yield f"{where}.{column} means nothing under algorithm {kind}; take it out"
    if taskset.trained_turns != "all" and "response" not in needs:
        yield f"{where}.trained_turns means nothing without a column `response`; take it out"
    if taskset.reply_prefix and needs:
        yield f"{where}.reply_prefix begins sampled answers, and those here are given; take it out"


def _queue(run: Run) -> Iterator[str]:
    """A queue has neither an end nor an order of its own."""
    train = run.data.train
    if isinstance(run.algorithm, Sft | Dpo):
        yield f"data.queue means nothing under algorithm {run.algorithm.type}, whose answers are given"
    if not isinstance(train.path, str) or train.table is None:
        yield "data.queue: a queue is one table of a database; write one `path` and its `table`"
    if run.trainer.duration.unit == "epochs":
        yield "trainer.duration: a queue has no epochs; write steps or updates, such as `100 steps`"
    if run.data.shuffle:
        yield "data.shuffle: a queue is first in, first out; write `shuffle: false`"
    if run.data.incomplete_batch == "keep":
        yield "data.incomplete_batch: a queue has no end that could fill no step; take it out"
    for name in ("dataset", "limit_tasks"):
        if getattr(train, name) is not None:
            yield f"data.train.{name} means nothing for a queue, whose rows come one by one; take it out"


def _expert(run: Run) -> Iterator[str]:
    expert = run.data.expert
    if isinstance(run.algorithm, Mix):
        if expert is None:
            yield (
                "data.expert: missing. algorithm mix needs an expert's answers to learn from, such as "
                "`expert: {path: expert.jsonl, response: answer}`"
            )
        else:
            yield from _columns(expert, "data.expert", "mix", needs=("response",), hint=_RESPONSE)
    elif expert is not None:
        yield f"data.expert means nothing under algorithm {run.algorithm.type}; mix learns from an expert"


def _only_for_rollouts(run: Run) -> Iterator[str]:
    """What speaks of rollouts that are trained on: there are none."""
    kind, none_sampled = run.algorithm.type, "which samples nothing to train on; take it out"
    if run.trainer.passes != 1 or run.trainer.shuffle_passes:
        yield (
            f"trainer.passes and trainer.shuffle_passes go over a step's rollouts again; algorithm {kind} "
            "has none. To see the data more than once, write a longer `trainer.duration`, such as 3 epochs"
        )
    if run.rollout.sampling != Rollout().sampling:
        yield f"rollout.sampling means nothing under algorithm {kind}, {none_sampled}"
    if run.record.rollouts_every is not None:
        yield f"record.rollouts_every means nothing under algorithm {kind}, {none_sampled}"
    if not run.reward.is_empty and not run.data.eval:
        yield (
            f"reward means nothing under algorithm {kind} without a taskset in `data.eval`: it scores "
            "answers sampled to those, and nothing else. Add one, or take the reward out"
        )
    if run.data.overlong_workers != 1:
        yield (
            f"data.overlong_workers encode prompts to sample from; under algorithm {kind} one process "
            "encodes the answers; take it out"
        )
    if run.data.overlong in ("left", "middle"):
        yield (
            f"data.overlong: {run.data.overlong} would cut into prompts under algorithm {kind}; write error, "
            "filter, or right, which drops what is above max_prompt_tokens + max_response_tokens at the end"
        )
