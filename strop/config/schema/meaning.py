"""What means nothing under the chosen algorithm, and what it lacks: said before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strop.config.schema.algorithm import Dpo, Mix, Ppo, Sft
from strop.config.schema.data import Taskset
from strop.config.schema.rollout import Rollout
from strop.config.schema.sample import DefaultSample, WarmUpSample

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
    yield from _auxiliary(run)
    yield from _sample(run)
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


def _auxiliary(run: Run) -> Iterator[str]:
    """Each set of given answers has its column and a reader, and each reader has a set."""
    names = [answers.name for answers in run.data.auxiliary]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        yield f"data.auxiliary: the name {doubled[0]!r} is given to two sets of answers"
    for answers in run.data.auxiliary:
        where = f"data.auxiliary ({answers.name})"
        yield from _columns(answers, where, "sft", needs=("response",), hint=_RESPONSE)
    read: list[str | None] = []
    for key, asked in _readers(run):
        if not names:
            yield (
                f"data.auxiliary: missing. {key} says whose answers are learned, and there are none; write "
                "them there, such as `auxiliary: [{name: expert, path: expert.jsonl, response: answer}]`"
            )
        elif asked is None and len(names) > 1:
            yield f"{key}: missing. data.auxiliary has {', '.join(names)}; write which of them"
        elif asked is not None and asked not in names:
            yield f"{key}: there is no {asked!r} in data.auxiliary; it has {', '.join(names)}"
        read.append(asked or names[0])
    for name in names:
        if name not in read:
            yield (
                f"data.auxiliary ({name}) is read by nothing: algorithm mix reads what its `expert` names, "
                "and trainer.sample warmup what its `answers` names; take it out, or name it there"
            )


def _readers(run: Run) -> Iterator[tuple[str, str | None]]:
    """The keys that name a set of given answers, and what they say."""
    if isinstance(run.algorithm, Mix):
        yield "algorithm.expert", run.algorithm.expert
    if isinstance(run.trainer.sample, WarmUpSample):
        yield "trainer.sample.answers", run.trainer.sample.answers


def _sample(run: Run) -> Iterator[str]:
    """What `trainer.sample` asks of the rest."""
    sample, algorithm = run.trainer.sample, run.algorithm
    if isinstance(sample, DefaultSample):
        return
    if isinstance(algorithm, Sft | Dpo):
        yield (
            f"trainer.sample.type: {sample.type} chooses among rollouts, and algorithm {algorithm.type} "
            "learns from given answers alone; take it out"
        )
    if isinstance(sample, WarmUpSample) and isinstance(algorithm, Ppo) and algorithm.critic.warmup_steps:
        yield (
            "algorithm.critic.warmup_steps lets a critic learn alone in the first steps, from rollouts, and "
            "trainer.sample warmup has none then; take one of the two out"
        )


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
