"""Checks of the algorithm against the other sections: columns, demonstrations, task queue, batch
selection."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.checks.data import arriving_row_faults, stream_faults
from strop.config.schema.algorithm import (
    OfflineAlgorithmConfig,
    OnlineDpoConfig,
    PpoConfig,
    PrimeConfig,
    SftConfig,
    demonstrations_field,
)
from strop.config.schema.data import TasksetConfig
from strop.config.schema.policy_loss import GvpoLossConfig, SelfPlayLossConfig
from strop.config.schema.preference import (
    BcoConfig,
    CpoConfig,
    DpoConfig,
    KtoConfig,
    OrpoConfig,
    PreferenceConfig,
    RewardModelingConfig,
    UnpairedConfig,
)
from strop.config.schema.record import RecordConfig
from strop.config.schema.rollout import RolloutConfig
from strop.config.schema.run import Run
from strop.config.schema.synchronizer import FixedStyleConfig, MemorySyncConfig
from strop.config.schema.trainer import DefaultSelectionConfig, WarmupSelectionConfig

_RESPONSE = "the column of the demonstrations, such as `response: messages`"
_TEXT = "plain text, such as `text: text`"
_PAIR = (
    "the columns of the preferred and the rejected response, such as `chosen: chosen`, `rejected: rejected`"
)
_LABELED = (
    "the columns of the response and its label, such as `response: completion`, `label: label`, or those of pairs, "
    "`chosen: chosen`, `rejected: rejected`"
)
_SCORE = "the columns of a response and of its score, such as `response: response`, `score: score`"


def algorithm_faults(run: Run) -> Iterator[str]:
    """Faults in what `algorithm.type` requires of the other sections; each names its key."""
    data, kind = run.data, run.algorithm.type
    match run.algorithm:
        case SftConfig():
            for field, trained in data.training_tasksets().items():
                needs = ("response",) if trained.text is None else ("text",)
                yield from _column_faults(
                    trained, field, kind, needs=needs, hint=f"{_RESPONSE}, or of {_TEXT}"
                )
            for taskset in data.eval:
                if taskset.text is not None:
                    where = f"data.eval ({taskset.name})"
                    yield from _column_faults(taskset, where, kind, needs=("text",), hint="")
                elif taskset.response is None:
                    where = f"data.eval ({taskset.name})"
                    yield from _column_faults(taskset, where, kind, needs=(), hint="")
        case DpoConfig() | CpoConfig() | OrpoConfig():
            pair = ("chosen", "rejected")
            for field, trained in data.training_tasksets().items():
                yield from _column_faults(trained, field, kind, needs=pair, hint=_PAIR)
            for taskset in data.eval:
                if taskset.is_offline or taskset.rejected:
                    where = f"data.eval ({taskset.name})"
                    yield from _column_faults(taskset, where, kind, needs=pair, hint=_PAIR)
        case KtoConfig() | BcoConfig():
            for field, trained in data.training_tasksets().items():
                yield from _label_faults(trained, field, kind)
            for taskset in data.eval:
                if taskset.is_offline or taskset.rejected or taskset.label:
                    yield from _label_faults(taskset, f"data.eval ({taskset.name})", kind)
        case RewardModelingConfig():
            yield from _reward_model_faults(run, run.algorithm)
        case _:
            for field, trained in data.training_tasksets().items():
                yield from _column_faults(trained, field, kind, needs=(), hint="")
            for taskset in data.eval:
                where = f"data.eval ({taskset.name})"
                yield from _column_faults(taskset, where, kind, needs=(), hint="")
    yield from _reference_point_faults(run)
    yield from _reference_sync_faults(run)
    yield from _aggregation_faults(run)
    yield from _online_dpo_faults(run)
    yield from _prime_faults(run)
    yield from _demonstration_faults(run)
    yield from _packing_faults(run)
    yield from _teacher_faults(run)
    yield from _selection_faults(run)
    if data.queue is not None:
        yield from _queue_faults(run)
    if data.stream is not None:
        yield from stream_faults(run)
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        yield from _rollout_key_faults(run)


def _reward_model_faults(run: Run, section: RewardModelingConfig) -> Iterator[str]:
    """Faults in what a reward model requires of data and model."""
    data, kind = run.data, f"reward_model with loss {section.loss}"
    needs, hint = (("chosen", "rejected"), _PAIR)
    if section.loss == "squared_error":
        needs, hint = ("response", "score"), _SCORE
    tasksets = {**data.training_tasksets(), **{f"data.eval ({each.name})": each for each in data.eval}}
    for where, taskset in tasksets.items():
        yield from _column_faults(taskset, where, kind, needs=needs, hint=hint)
        if taskset.images is not None:
            yield f"{where}.images has no effect under algorithm reward_model, which reads text; remove it"
        if taskset.trained_turns != "all" or taskset.train_on_prompt:
            yield (
                f"{where}.trained_turns and train_on_prompt have no effect under algorithm reward_model, which scores "
                "whole conversations; remove them"
            )
    if not run.reward.is_empty:
        yield "reward has no effect under algorithm reward_model, which trains one and samples nothing; remove it"
    if run.model.lora is not None and run.model.lora.adapter is not None:
        yield (
            "model.lora.adapter is of a policy, and the adapter of a reward model starts new; remove it, or write a "
            "model with the adapter merged as model.path"
        )


def _column_faults(
    taskset: TasksetConfig, where: str, kind: str, *, needs: tuple[str, ...], hint: str
) -> Iterator[str]:
    for column, goes_with in (("margin", "chosen"), ("score", "score")):
        may_have = kind.startswith("reward_model") and goes_with in needs
        if getattr(taskset, column) is not None and not may_have:
            yield f"{where}.{column} has no effect under algorithm {kind}; remove it"
    if "score" in needs and taskset.score is None:
        yield f"{where}.score: missing. Algorithm {kind} needs {hint}"
    for column in ("response", "label", "text", "chosen", "rejected"):
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


def _label_faults(taskset: TasksetConfig, where: str, kind: str) -> Iterator[str]:
    """Faults in the columns of labeled responses, or of pairs that become such."""
    is_paired = taskset.chosen is not None or taskset.rejected is not None
    needs = ("chosen", "rejected") if is_paired else ("response", "label")
    yield from _column_faults(taskset, where, kind, needs=needs, hint=_LABELED)
    if taskset.train_on_prompt:
        yield f"{where}.train_on_prompt has no meaning under algorithm {kind}, which compares responses; remove it"


def _reference_point_faults(run: Run) -> Iterator[str]:
    """Faults of an update from which KTO cannot estimate the divergence."""
    if not (isinstance(run.algorithm, KtoConfig) and run.algorithm.estimates_kl):
        return
    key = "tasks_per_step" if run.trainer.tasks_per_update is None else "tasks_per_update"
    if getattr(run.trainer, key) == 1:
        yield (
            f"trainer.{key} is 1, but algorithm kto estimates the KL divergence from the prompts of an update with the "
            "responses of its other rows; write 2 or more, or algorithm.loss: apo_zero_unpaired"
        )
    held_out = {f"data.eval ({each.name})": each for each in run.data.eval if each.is_offline}
    for where, taskset in {**run.data.training_tasksets(), **held_out}.items():
        if taskset.images is not None:
            yield (
                f"{where}.images: algorithm kto estimates the KL divergence from prompts with other rows' responses, "
                "for text only; write algorithm.loss: apo_zero_unpaired, or algorithm bco"
            )


def _reference_sync_faults(run: Run) -> Iterator[str]:
    """Faults of a reference that changes where it cannot."""
    if not isinstance(run.algorithm, DpoConfig) or run.algorithm.reference_sync is None:
        return
    if run.model.lora is not None:
        yield (
            "algorithm.reference_sync changes the weights of the reference, and with model.lora the reference is the "
            "model without its adapter; remove one of them"
        )
    if run.trainer.engine.type != "local":
        yield (
            f"trainer.engine.type is {run.trainer.engine.type}, but algorithm.reference_sync changes a reference model "
            "that one process holds; write trainer.engine: local"
        )


def _queue_faults(run: Run) -> Iterator[str]:
    """Faults of a run that reads its tasks from a queue, which has neither an end nor a fixed order."""
    train = run.data.train
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
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


def _aggregation_faults(run: Run) -> Iterator[str]:
    """Faults of an aggregation that does not give the loss its meaning."""
    algorithm = run.algorithm
    if isinstance(algorithm, OfflineAlgorithmConfig):
        return
    loss = algorithm.policy_loss
    if (
        isinstance(loss, GvpoLossConfig | SelfPlayLossConfig)
        and algorithm.aggregation != "seq-mean-token-sum"
    ):
        yield (
            f"algorithm.aggregation is {algorithm.aggregation}, but the loss {loss.type} is a sum over the tokens of a "
            "response, averaged over responses; write aggregation: seq-mean-token-sum"
        )


def _online_dpo_faults(run: Run) -> Iterator[str]:
    """Faults of the settings in which the gradient is not that of DPO."""
    algorithm, trainer = run.algorithm, run.trainer
    if not isinstance(algorithm, OnlineDpoConfig):
        return
    if algorithm.policy_loss.type != "gpg" or algorithm.aggregation != "seq-mean-token-sum":
        yield (
            "algorithm.policy_loss and algorithm.aggregation: online_dpo sums the log-probs of a response; write "
            "policy_loss: gpg and aggregation: seq-mean-token-sum, or remove both"
        )
    if trainer.tasks_per_update not in (None, trainer.tasks_per_step) or trainer.epochs_per_step != 1:
        yield (
            "trainer.tasks_per_update: online_dpo compares with the policy at the step's start, which is the policy "
            "itself in the first update only; write one update per step: remove tasks_per_update, and leave "
            "epochs_per_step at 1"
        )


def _prime_faults(run: Run) -> Iterator[str]:
    """Faults of PRIME's second model and of its choice of groups."""
    if isinstance(run.algorithm, PrimeConfig) and run.trainer.engine.type != "local":
        yield (
            f"trainer.engine.type is {run.trainer.engine.type}, but algorithm prime trains a second language model, "
            "which only one process can; write trainer.engine: local"
        )
    synchronizer = run.synchronizer
    if run.oversampling is None or isinstance(synchronizer, MemorySyncConfig):
        return
    if not isinstance(synchronizer.style, FixedStyleConfig):
        yield (
            f"algorithm.oversampling chooses among the groups of a step, and synchronizer.style "
            f"{synchronizer.style.type} has no steps; write style: fixed"
        )


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
    if not isinstance(run.algorithm, SftConfig):
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
    if isinstance(run.algorithm, OfflineAlgorithmConfig) or run.algorithm.distillation is None:
        return
    for number, teacher in enumerate(run.algorithm.distillation.teachers):
        without = [where for where, each in run.data.training_tasksets().items() if each.source is None]
        if teacher.sources is not None and without:
            yield (
                f"{without[0]}.source: missing. algorithm.distillation.teachers.{number}.sources chooses tasks by "
                "it; write the column of the data source, such as `source: data_source`"
            )


def _demonstration_keys(run: Run) -> Iterator[tuple[str, str | None]]:
    """The keys that name a set of demonstrations, with their values."""
    if (field := demonstrations_field(run.algorithm)) is not None:
        yield f"algorithm.{field}", getattr(run.algorithm, field)
    if isinstance(run.trainer.batch_selection, WarmupSelectionConfig):
        yield "trainer.batch_selection.demonstrations", run.trainer.batch_selection.demonstrations


def _selection_faults(run: Run) -> Iterator[str]:
    """Faults in what `trainer.batch_selection` requires of the algorithm."""
    selection, algorithm = run.trainer.batch_selection, run.algorithm
    if isinstance(selection, DefaultSelectionConfig):
        return
    if isinstance(algorithm, OfflineAlgorithmConfig):
        yield (
            f"trainer.batch_selection.type: {selection.type} selects rollouts, and algorithm "
            f"{algorithm.type} "
            "has none; remove it"
        )
    if (
        isinstance(selection, WarmupSelectionConfig)
        and isinstance(algorithm, PpoConfig)
        and algorithm.critic.warmup_steps
    ):
        yield (
            "algorithm.critic.warmup_steps trains the critic on the rollouts of the first steps, and "
            "trainer.batch_selection warmup has no rollouts in its first steps; remove one of the two"
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
    compared = isinstance(run.algorithm, PreferenceConfig | UnpairedConfig | RewardModelingConfig)
    refused = ("middle", "left") if compared else ("middle",)
    if run.data.overlong in refused:
        yield (
            f"data.overlong: {run.data.overlong} has no meaning under algorithm {kind}; write error, filter, or "
            "right, which removes the end above max_prompt_tokens + max_response_tokens"
        )
