"""Checks of the algorithm against the other sections: columns, demonstrations, task queue, batch
selection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strop.config.checks.data import arriving_row_faults, stream_faults
from strop.config.schema.data import TasksetConfig
from strop.config.schema.policy_gradient import Rows
from strop.config.schema.record import RecordConfig
from strop.config.schema.rollout import RolloutConfig
from strop.config.schema.run import Run
from strop.config.schema.trainer import DefaultSelectionConfig, WarmupSelectionConfig

_RESPONSE = "the column of the demonstrations, such as `response: messages`"
_PAIR = (
    "the columns of the preferred and the rejected response, such as `chosen: chosen`, `rejected: rejected`"
)
_COLUMNS: Mapping[Rows, tuple[str, ...]] = {
    "tasks": (),
    "demonstrations": ("response",),
    "pairs": ("chosen", "rejected"),
    "labels": ("response", "label"),
    "scores": ("response", "score"),
    "steps": ("steps", "label"),
}
"""Columns that rows of each kind must have."""
_HINTS: Mapping[Rows, str] = {
    "tasks": "",
    "demonstrations": f"{_RESPONSE}, or of plain text, such as `text: text`",
    "pairs": _PAIR,
    "labels": (
        "the columns of the response and its label, such as `response: completion`, `label: label`, or those of pairs, "
        "`chosen: chosen`, `rejected: rejected`"
    ),
    "scores": "the columns of a response and of its score, such as `response: response`, `score: score`",
    "steps": "the columns of the steps of a response and their labels, such as `steps: completions`, `label: labels`",
}


def algorithm_faults(run: Run) -> Iterator[str]:
    """Faults in what `algorithm` requires of the other sections; each names its key."""
    yield from _row_faults(run)
    yield from run.algorithm.run_faults(run)
    yield from _demonstration_faults(run)
    yield from _packing_faults(run)
    yield from _teacher_faults(run)
    yield from _selection_faults(run)
    if run.data.queue is not None:
        yield from _queue_faults(run)
    if run.data.stream is not None:
        yield from stream_faults(run)
    if run.algorithm.is_offline:
        yield from _rollout_key_faults(run)


def _row_faults(run: Run) -> Iterator[str]:
    """Faults in the columns of the training data and of the eval tasksets."""
    algorithm, data = run.algorithm, run.data
    kind: str = algorithm.type
    if algorithm.reward_model is not None:
        kind = f"{kind} with loss {algorithm.reward_model.loss}"
    for where, trained in data.training_tasksets().items():
        yield from _taskset_faults(trained, where, kind, algorithm.rows)
    for held_out in data.eval:
        where = f"data.eval ({held_out.name})"
        given = held_out.is_offline or held_out.rejected or (algorithm.rows == "labels" and held_out.label)
        if algorithm.rows == "demonstrations" and held_out.text is None:
            if held_out.response is None:
                yield from _column_faults(held_out, where, kind, needs=(), hint="")
        elif given or algorithm.rows == "tasks" or algorithm.reward_model is not None:
            yield from _taskset_faults(held_out, where, kind, algorithm.rows)


def _taskset_faults(taskset: TasksetConfig, where: str, kind: str, rows: Rows) -> Iterator[str]:
    """Faults in the columns of rows of one kind; pairs become labeled responses, too."""
    needs = _COLUMNS[rows]
    if rows == "demonstrations" and taskset.text is not None:
        needs = ("text",)
    if rows == "labels" and (taskset.chosen is not None or taskset.rejected is not None):
        needs = _COLUMNS["pairs"]
    yield from _column_faults(taskset, where, kind, needs=needs, hint=_HINTS[rows])
    if rows == "labels" and taskset.train_on_prompt:
        yield f"{where}.train_on_prompt has no meaning under algorithm {kind}, which compares responses; remove it"


def _column_faults(
    taskset: TasksetConfig, where: str, kind: str, *, needs: tuple[str, ...], hint: str
) -> Iterator[str]:
    for column, goes_with in (("margin", "chosen"), ("score", "score")):
        may_have = kind.startswith("reward_model") and goes_with in needs
        if getattr(taskset, column) is not None and not may_have:
            yield f"{where}.{column} has no effect under algorithm {kind}; remove it"
    if "score" in needs and taskset.score is None:
        yield f"{where}.score: missing. Algorithm {kind} needs {hint}"
    for column in ("response", "label", "text", "chosen", "rejected", "steps"):
        written = getattr(taskset, column) is not None
        if column in needs and not written:
            yield f"{where}.{column}: missing. Algorithm {kind} needs {hint}"
        if column not in needs and written:
            yield f"{where}.{column} has no effect under algorithm {kind}; remove it"
    if taskset.trained_turns != "all" and "response" not in needs:
        yield f"{where}.trained_turns has no effect without a column `response`; remove it"
    if taskset.train_on_prompt and "response" not in needs:
        yield f"{where}.train_on_prompt has no effect without a column `response`; remove it"
    if taskset.reply_prefix and needs:
        yield (
            f"{where}.reply_prefix has no effect under algorithm {kind}: it starts sampled responses, and "
            "the "
            "responses of this taskset are given; remove it"
        )


def _queue_faults(run: Run) -> Iterator[str]:
    """Faults of a run that reads its tasks from a queue, which has neither an end nor a fixed order."""
    train = run.data.train
    if run.algorithm.is_offline:
        yield (
            f"data.queue has no effect under algorithm {run.algorithm.type}, which samples no tasks; remove "
            "it"
        )
    if not isinstance(train.path, str) or train.table is None:
        yield "data.queue requires a database table; write one `path` and its `table` in data.train"
    if run.trainer.duration.unit == "epochs":
        yield "trainer.duration: a task queue has no epochs; write steps or updates, such as `100 steps`"
    if run.data.shuffle:
        yield "data.shuffle: a task queue is first in, first out; write `shuffle: false`"
    if run.data.incomplete_batch == "keep":
        yield "data.incomplete_batch: a task queue has no last, incomplete batch; remove it"
    for name in ("dataset", "limit_tasks"):
        if getattr(train, name) is not None:
            yield f"data.train.{name} has no effect with data.queue, which reads rows one by one; remove it"
    if run.data.pipeline is not None:
        yield from arriving_row_faults(run.data.pipeline, "data.queue")


def _demonstration_faults(run: Run) -> Iterator[str]:
    """Faults in the sets of demonstrations and in the keys that name a set."""
    names = [demonstrations.name for demonstrations in run.data.demonstrations]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"data.demonstrations: two sets have the name {name!r}; write two different names"
    for demonstrations in run.data.demonstrations:
        where = f"data.demonstrations ({demonstrations.name})"
        yield from _column_faults(demonstrations, where, "sft", needs=("response",), hint=_RESPONSE)
    used: list[str | None] = []
    for key, named in _demonstration_keys(run):
        if not names:
            yield (
                f"data.demonstrations: missing. {key} names a set of demonstrations, and there is none; "
                "write "
                "it, such as `demonstrations: [{name: expert, path: expert.jsonl, response: answer}]`"
            )
        elif named is None and len(names) > 1:
            yield f"{key}: missing. data.demonstrations has the sets {', '.join(names)}; write one of them"
        elif named is not None and named not in names:
            yield f"{key}: there is no set {named!r} in data.demonstrations; it has {', '.join(names)}"
        used.append(named or next(iter(names), None))
    for name in names:
        if name not in used:
            yield (
                f"data.demonstrations ({name}) is not used: algorithm mix reads the set that its `expert` names, "
                "distillation with a demonstration_fraction that of its `demonstrations`, and "
                "trainer.batch_selection warmup that of its `demonstrations`; remove it, or name it there"
            )


def _packing_faults(run: Run) -> Iterator[str]:
    """Faults of packed sequences in what they require of algorithm and data."""
    data, packing = run.data, run.data.packing
    if packing is None:
        return
    if run.algorithm.rows != "demonstrations":
        yield f"data.packing applies to sft; remove it under algorithm {run.algorithm.type}"
        return
    for field, value in (
        ("order", data.order),
        ("mixture", data.mixture),
        ("train.images", data.train.images),
    ):
        if value:
            yield f"data.packing puts rows of text from one taskset into sequences; remove it, or data.{field}"
    if packing.strategy != "bfd" and data.overlong != "error":
        yield (
            f"data.overlong has no effect under data.packing.strategy {packing.strategy}, which cuts rows that are too "
            "long into pieces; remove it, or write strategy: bfd"
        )


def _teacher_faults(run: Run) -> Iterator[str]:
    """Faults of teachers for tasks of some data sources, in a run whose tasks have none."""
    for number, teacher in enumerate(run.algorithm.teachers):
        without = [where for where, each in run.data.training_tasksets().items() if each.source is None]
        if teacher.sources is not None and without:
            yield (
                f"{without[0]}.source: missing. algorithm.distillation.teachers.{number}.sources chooses tasks by "
                "it; write the column of the data source, such as `source: data_source`"
            )


def _demonstration_keys(run: Run) -> Iterator[tuple[str, str | None]]:
    """The keys that name a set of demonstrations, with their values."""
    if (added := run.algorithm.added_demonstrations) is not None:
        yield f"algorithm.{added.field}", added.name
    if isinstance(run.trainer.batch_selection, WarmupSelectionConfig):
        yield "trainer.batch_selection.demonstrations", run.trainer.batch_selection.demonstrations


def _selection_faults(run: Run) -> Iterator[str]:
    """Faults in what `trainer.batch_selection` requires of the algorithm."""
    selection = run.trainer.batch_selection
    if run.algorithm.is_offline and not isinstance(selection, DefaultSelectionConfig):
        yield (
            f"trainer.batch_selection.type: {selection.type} selects rollouts, and algorithm {run.algorithm.type} has "
            "none; remove it"
        )


def _rollout_key_faults(run: Run) -> Iterator[str]:
    """Faults of keys that concern rollouts for training, under an algorithm without them."""
    kind, none_sampled = run.algorithm.type, "which samples nothing to train on; remove it"
    if run.trainer.epochs_per_step != 1 or run.trainer.shuffle_each_epoch:
        yield (
            "trainer.epochs_per_step and trainer.shuffle_each_epoch apply to the rollouts of a step, and "
            f"algorithm {kind} has none; for several epochs write a longer `trainer.duration`, such as 3 "
            "epochs"
        )
    if run.rollout.sampling != RolloutConfig().sampling:
        yield f"rollout.sampling has no effect under algorithm {kind}, {none_sampled}"
    if run.record.rollouts_every is not None:
        yield f"record.rollouts_every has no effect under algorithm {kind}, {none_sampled}"
    if run.record.sampled_groups != RecordConfig().sampled_groups:
        yield f"record.sampled_groups has no effect under algorithm {kind}, {none_sampled}"
    if not run.reward.is_empty and not run.data.eval:
        yield (
            f"reward has no effect under algorithm {kind} without a taskset in `data.eval`: it scores only "
            "the responses to those; add a taskset, or remove the reward"
        )
    if run.data.tokenize_workers != 1:
        yield (
            f"data.tokenize_workers has no effect under algorithm {kind}, which encodes demonstrations in "
            "one "
            "process; remove it"
        )
    refused = ("middle",) if run.algorithm.rows == "demonstrations" else ("middle", "left")
    if run.data.overlong in refused:
        yield (
            f"data.overlong: {run.data.overlong} has no meaning under algorithm {kind}; write error, filter, or "
            "right, which removes the end above max_prompt_tokens + max_response_tokens"
        )
