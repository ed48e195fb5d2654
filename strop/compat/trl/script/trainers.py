"""Stand-ins for TRL's trainers: parameters in TRL's order, their rewards, and the run that `train()` starts."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from strop.compat.trl.reader import TrlProgram, read_trl_tree
from strop.compat.trl.script.configurations import config_of, process_count
from strop.compat.trl.script.datasets import DataSource, eval_sources, source_of, written_rows
from strop.compat.trl.script.models import RecordedModel, model_of, quantization_keys, tokenizer_fields
from strop.compat.trl.script.results import (
    Accelerator,
    CallbackAdapter,
    TrainedModel,
    TrainedState,
    TrainOutput,
    checkpoint_of,
    evaluation,
    own_work,
    print_metrics,
    save_metrics,
    save_model,
)
from strop.compat.trl.script.session import RefusedArgument, ScriptStopped, current_session
from strop.config.load.config_tree import ConfigTree, Source
from strop.config.load.loader import Job
from strop.config.load.overrides import apply_override, parse_valid_overrides
from strop.config.schema.run import field_at
from strop.python_rewards import PythonReward


@dataclass(frozen=True, slots=True)
class ScriptRewards:
    """The parts of a reward, each with its weight."""

    functions: tuple[dict[str, Any], ...]
    """Entries of `reward.functions`."""
    models: tuple[dict[str, Any], ...]
    """Entries of `reward.models`."""
    objects: tuple[PythonReward, ...]
    """Functions that exist only in the script."""


def read_rewards(reward_funcs: Any, weights: Sequence[float] | None) -> ScriptRewards:
    """The rewards of a trainer. Raises ConfigError for weights of another number, and for an object that is neither a
    function nor a model."""
    session = current_session()
    parts = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    parts = [part for part in parts if part is not None]
    if not parts:
        raise session.error(
            "reward_funcs is missing; write a function, the name of a reward model, or a list of them."
        )
    if weights is None:
        weights = [1.0] * len(parts)
    if len(weights) != len(parts):
        raise session.error(
            f"reward_weights has {len(weights)} numbers for {len(parts)} rewards; write one for each of reward_funcs."
        )
    functions: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    objects: list[PythonReward] = []
    for part, name, weight in zip(parts, _names(parts), map(float, weights), strict=True):
        if isinstance(part, str | Path):
            models.append({"path": str(part), "name": name, "weight": weight})
        elif isinstance(part, RecordedModel) or not callable(part) or hasattr(part, "get_input_embeddings"):
            raise session.error(
                f"reward_funcs has a {type(part).__name__}; write a function, or the name of a reward model as a text."
            )
        elif reference := _reference(part):
            named = {"name": name} if reference.rpartition(":")[2].rpartition(".")[2] != name else {}
            functions.append({"function": reference, **named, "weight": weight})
        else:
            objects.append(PythonReward(part, name, weight))
    return ScriptRewards(tuple(functions), tuple(models), tuple(objects))


def _names(parts: Sequence[Any]) -> Iterator[str]:
    """Names of reward components; those of the same name are numbered."""
    used: set[str] = set()
    for part in parts:
        if isinstance(part, str | Path):
            name = str(part).rstrip("/").rpartition("/")[2]
        else:
            inner = getattr(part, "func", part)  # functools.partial
            name = str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
        unique, number = name, 1
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        yield unique


def _reference(function: Callable[..., Any]) -> str | None:
    """`file.py:name` or a dotted path of a function that a module defines; None for one that exists only as an object,
    such as a function of the script, a closure or a method."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or not inspect.isfunction(function):
        return None
    if not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if getattr(module, "strop_reference", None):
        return f"{module.strop_reference}.{name}"
    file = getattr(module, "__file__", None)
    if "." in module.__name__ or file is None or Path(file).suffix != ".py" or "site-packages" in file:
        return f"{module.__name__}.{name}"
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{name}"


_WORKFLOW = "write rollout.workflow in a run file (`strop help workflows`)"
_OWN_LOSS = (
    "write a run file with algorithm: {type: custom} and a loss of your own "
    "(`strop help algorithms#custom-algorithms`)"
)
_REFUSED: Mapping[str, str] = {
    "reward_processing_classes": "a reward model's own tokenizer is used; leave it out",
    "optimizers": "write optim, learning_rate and lr_scheduler_type of the configuration",
    "optimizer_cls_and_kwargs": "write optim, learning_rate and lr_scheduler_type of the configuration",
    "tools": _WORKFLOW,
    "rollout_func": _WORKFLOW,
    "environment_factory": _WORKFLOW,
    "model_init": "pass the model",
    "data_collator": "Strop encodes and packs the rows itself; leave it out",
    "compute_loss_func": _OWN_LOSS,
    "compute_metrics": "Strop evaluates rewards, or the loss of held-out rows; leave it out",
    "preprocess_logits_for_metrics": "Strop evaluates rewards, or the loss of held-out rows; leave it out",
}
"""Arguments of trainers that Strop does not have, with what to write instead."""


class RecordedTrainer:
    """Base of the stand-ins. The constructor refuses what Strop cannot honor; `train()` starts the run."""

    program: ClassVar[TrlProgram]
    parameters: ClassVar[tuple[str, ...]]
    """Parameters in TRL's order."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = [name for name, value in vars(cls).items() if inspect.isfunction(value) and name != "__init__"]
        if own and cls.__module__ != __name__:
            raise current_session().error(
                f"{cls.__name__} is a subclass with the method {own[0]}, which Strop does not call; use the trainer of "
                "TRL, or write a run file with your own algorithm, workflow or reward (`strop help library`)."
            )

    def __init__(self, *arguments: Any, **options: Any) -> None:
        session, name = current_session(), type(self).__name__
        if len(arguments) > len(self.parameters):
            raise RefusedArgument(f"{session.place()}: {name} has {len(arguments)} arguments without names.")
        given = dict(zip(self.parameters, arguments, strict=False))
        for key, value in options.items():
            if key == "tokenizer" and "tokenizer" not in self.parameters:
                key = "processing_class"  # the name in earlier versions, and in unsloth's notebooks
            if key not in self.parameters or key in given:
                what = "twice" if key in given else "which TRL 1.16 does not have"
                raise RefusedArgument(
                    f"{session.place()}: {name} has the argument {key}, {what}; leave it out."
                )
            given[key] = value
        for key, value in given.items():
            if key in _REFUSED and value is not None and value not in ((None, None), [], ()):
                raise session.error(f"{name} has {key}, which Strop does not have: {_REFUSED[key]}.")
        self.source: Source = session.source()
        self.given = given
        init_options = getattr(given.get("args"), "model_init_kwargs", None)
        self._recorded = model_of(given.get("model"), init_options)
        self.model: Any = self._recorded
        self.args = config_of(self.program, given.get("args"), self._recorded.name_or_path)
        if given.get("peft_config") is not None:
            if self._recorded.adapter is not None:
                raise session.error(
                    "peft_config is set, and the model has an adapter already; write one of them."
                )
            self._recorded.adapter = given["peft_config"]
        self.train_dataset = given.get("train_dataset")
        self.eval_dataset = given.get("eval_dataset")
        self.processing_class = self.tokenizer = given.get("processing_class")
        self._require_initial_reference(given.get("ref_model"))
        self.state = TrainedState()
        self.accelerator = Accelerator()
        self.is_world_process_zero = self.is_local_process_zero = lambda: True
        self.last_step: float | None = None
        """Last step that callbacks have seen."""
        self._result: Any = None
        self._callbacks: list[CallbackAdapter] = []
        for callback in given.get("callbacks") or ():
            self.add_callback(callback)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise current_session().error(
            f"trainer.{name} is not available: Strop trains with its own loop, and has train, evaluate, save_model, "
            "add_callback, state, args and the datasets of TRL's trainer."
        )

    def add_callback(self, callback: Any) -> None:
        """Add a callback. Raises ConfigError for one with events that Strop does not have."""
        one = callback() if inspect.isclass(callback) else callback
        self._callbacks.append(CallbackAdapter(one, self))

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> TrainOutput:
        """Start the run; a script that is only read ends here. Returns TRL's `TrainOutput` with the run's result."""
        session = current_session()
        if options:
            raise session.error(f"train has {next(iter(options))}, which Strop does not have; leave it out.")
        job = self._read(resume_from_checkpoint)
        if session.start is None:
            raise ScriptStopped(job)
        session.trained += 1
        with own_work(session):
            self._result = session.start(job)
        self.state.finish(self._result)
        for callback in self._callbacks:
            callback.on_end()
        self.model = TrainedModel(self._result, self.processing_class)
        return TrainOutput.of(self._result, self.state)

    def evaluate(self, eval_dataset: Any = None, **options: Any) -> dict[str, float]:
        """Evaluate the eval datasets with the trained model, or before training with the initial one."""
        session = current_session()
        if options:
            raise session.error(
                f"evaluate has {next(iter(options))}, which Strop does not have; leave it out."
            )
        if eval_dataset is not None:
            self.eval_dataset = eval_dataset
        if self.eval_dataset is None:
            raise session.error("evaluate needs an eval_dataset; pass one to the trainer.")
        job = self._read(None, evaluated=True)
        if session.evaluate is None:
            session.note("evaluate() is not executed here, and gives no numbers.")
            return {}
        checkpoint = None if self._result is None else self._result.folder
        with own_work(session):
            return evaluation(session.evaluate(job, checkpoint))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Copy the trained model to a folder."""
        save_model(self._result, output_dir or self.args.output_dir)

    def save_state(self) -> None:
        """Nothing: checkpoints have the state."""
        current_session().note("save_state() has no effect: the checkpoints of the run have its state.")

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print metrics."""
        print_metrics(split, metrics)

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Write metrics to `<split>_results.json` of the output folder."""
        save_metrics(Path(self.args.output_dir or "trainer_output"), split, metrics)

    def end(self) -> None:
        """Nothing: monitors and processes are closed when the run ends."""

    def push_to_hub(self, *arguments: Any, **options: Any) -> None:
        """Refused. Raises ConfigError."""
        raise current_session().error(
            "push_to_hub is not done from a script; when the run has ended, write strop export "
            f"{self.args.output_dir or 'trainer_output'} --to FOLDER --push-to-hub ORG/NAME."
        )

    def create_model_card(self, *arguments: Any, **options: Any) -> None:
        """Nothing: Strop writes a model card."""
        current_session().note("create_model_card() has no effect: the folder of the model has a card.")

    def _require_initial_reference(self, reference: Any) -> None:
        """Raise ConfigError for a reference model other than the initial model."""
        if reference is None:
            return
        session = current_session()
        named = model_of(reference, None)
        same = model_of(self.given.get("model"), None).name_or_path
        if named.name_or_path != same or named.adapter is not None:
            raise session.error(
                f"ref_model is {named.name_or_path}, and Strop's reference is the initial model, {same}; "
                "leave ref_model out, or train from the model that is the reference."
            )

    def _read(self, resume: Any, *, evaluated: bool = False) -> Job:
        """The run that the trainer describes. Raises ConfigError for what Strop cannot do."""
        session = current_session()
        tree = self._tree(evaluated)
        if self.train_dataset is None:
            raise session.error("train_dataset is missing; pass a dataset.")
        self._set_dataset(tree, self._rows(self.train_dataset, "train_dataset"))
        evals = eval_sources(self.eval_dataset, self._rows)
        if evals and self.args.eval_strategy in ("no", None) and not evaluated:
            session.note(
                "eval_dataset is not evaluated during training, because eval_strategy is no, as in TRL."
            )
        weights = getattr(self.args, "reward_weights", None)
        rewards = self._rewards(weights)

        def complete(fields: ConfigTree) -> None:
            self._complete(fields, evals, rewards, resume)

        loaded = read_trl_tree(
            self.program, tree, here=session.here, key_owner=session.key_owner, complete=complete
        )
        notes = (*session.notes, *loaded.notes)
        session.notes = []
        objects = () if rewards is None else rewards.objects
        if objects:
            names = ", ".join(str(part.name) for part in objects)
            notes = (*notes, f"{session.place()}: reward functions of the script itself: {names}.")
        return Job(replace(loaded, notes=notes, rewards=objects, callbacks=tuple(self._callbacks)))

    def _tree(self, evaluated: bool) -> ConfigTree:
        """TRL's keys, each with the line that set it."""
        tree = ConfigTree()
        for key, value, source in self.args.written():
            if key not in ("model_init_kwargs", "reward_weights"):
                tree.set((key,), value, source)
        for key, value, source in self._recorded.trl_keys():
            tree.set((key,), value, source)
        if (quantized := self.given.get("quantization_config")) is not None:
            for key, value, source in quantization_keys(quantized, self.source):
                tree.set((key,), value, source)
        if (processes := process_count()) > 1:
            tree.set(("num_processes",), processes, Source("override", f"WORLD_SIZE={processes}"))
        if evaluated and self.args.eval_strategy in ("no", None):
            tree.set(("eval_strategy",), "epoch", self.source)
        length = self._recorded.max_length
        if length is not None and self.program == "sft" and "max_length" not in tree.values:
            tree.set(("max_length",), length, self.source)
        return tree

    def _set_dataset(self, tree: ConfigTree, rows: DataSource) -> None:
        tree.set(("dataset_name",), rows.path, self.source)
        if rows.subset is not None:
            tree.set(("dataset_config",), rows.subset, self.source)
        if rows.split is not None:
            tree.set(("dataset_train_split",), rows.split, self.source)
        if rows.is_streamed:
            tree.set(("dataset_streaming",), True, self.source)

    def _rows(self, dataset: Any, what: str) -> DataSource:
        return source_of(dataset, what, self._data_folder())

    def _data_folder(self) -> Path:
        return Path(f"{self.args.output_dir or 'trainer_output'}.data")

    def _rewards(self, weights: Any) -> ScriptRewards | None:
        return None

    def _complete(
        self, fields: ConfigTree, evals: Mapping[str, DataSource], rewards: ScriptRewards | None, resume: Any
    ) -> None:
        """Set the run-file values that TRL's options cannot express."""
        if fields.get(("data", "eval")):
            template = fields.get(("data", "eval"))[0]
            if not evals:
                raise current_session().error(
                    f"eval_strategy is {self.args.eval_strategy}, and there is no eval_dataset; pass one, or leave "
                    "eval_strategy at no."
                )
            fields.set(("data", "eval"), [_taskset(template, *one) for one in evals.items()], self.source)
        if rewards is not None:
            fields.set(("reward", "functions"), list(rewards.functions), self.source)
            if rewards.models:
                fields.set(("reward", "models"), list(rewards.models), self.source)
        if self.processing_class is not None:
            for field, value in tokenizer_fields(self.processing_class, self._recorded):
                fields.set(tuple(field.split(".")), value, self.source)
        if isinstance(resume, str | Path):
            fields.set(("resume",), str(checkpoint_of(resume)), self.source)
        for written in parse_valid_overrides(current_session().changes, fields.faults):
            apply_override(
                fields,
                written,
                known=lambda keys: field_at(keys, fields.values) is not None,
                suggest=lambda dotted: (
                    f"The run file has no key {dotted}; `strop keys strop` lists its keys."
                ),
            )


def _taskset(template: Mapping[str, Any], name: str, rows: DataSource) -> dict[str, Any]:
    """An eval taskset with the rows of a dataset, and the other settings of `template`."""
    kept = {key: value for key, value in template.items() if key not in ("path", "subset", "split", "name")}
    named = {"name": name, "path": rows.path, "subset": rows.subset, "split": rows.split}
    return {**{key: value for key, value in named.items() if value is not None}, **kept}


class GRPOTrainer(RecordedTrainer):
    """TRL's GRPOTrainer."""

    program = "grpo"
    parameters = (
        *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
        *("reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config"),
        *("tools", "rollout_func", "environment_factory"),
    )

    def _rewards(self, weights: Any) -> ScriptRewards:
        return read_rewards(self.given.get("reward_funcs"), weights)


class RLOOTrainer(RecordedTrainer):
    """TRL's RLOOTrainer."""

    program = "rloo"
    parameters = GRPOTrainer.parameters[:11]
    _rewards = GRPOTrainer._rewards


class SFTTrainer(RecordedTrainer):
    """TRL's SFTTrainer."""

    program = "sft"
    parameters = (
        *("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"),
        *("compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs"),
        *("preprocess_logits_for_metrics", "quantization_config", "peft_config", "formatting_func"),
    )

    def _rows(self, dataset: Any, what: str) -> DataSource:
        """The rows; conversations of the Hub are written to a file, because all tokens of them are trained. Raises
        ConfigError for other columns than TRL reads."""
        dataset = self._formatted(dataset, what)
        rows, session = super()._rows(dataset, what), current_session()
        columns = {*rows.columns}
        if not columns or {"prompt", "completion"} <= columns or self.args.assistant_only_loss:
            return rows
        if {"messages", "conversations"} & columns:
            if rows.is_streamed:
                raise session.error(
                    f"{what} is streamed, and all tokens of its messages are trained; load it without streaming=True, "
                    "so that its rows can be written to a file, or write assistant_only_loss=True."
                )
            return rows if rows.split is None else written_rows(dataset, what, self._data_folder())
        if self.args.dataset_text_field not in columns:
            raise session.error(
                f"{what} has the columns {', '.join(rows.columns)}; TRL's SFT reads messages, prompt and completion, "
                f"or a text in the column {self.args.dataset_text_field} (dataset_text_field)."
            )
        return rows

    def _formatted(self, dataset: Any, what: str) -> Any:
        """The texts that `formatting_func` makes of the rows. Raises ConfigError where TRL reads other columns."""
        function = self.given.get("formatting_func")
        if function is None or not hasattr(dataset, "map"):
            return dataset
        session, columns = current_session(), list(dataset.column_names or ())
        if found := [
            name for name in ("prompt", "messages", "conversations", "input_ids") if name in columns
        ]:
            raise session.error(
                f"{what} has a column {found[0]}, which TRL 1.16 reads in place of the text of formatting_func; make "
                f"the text with {what}.map, or remove the column."
            )
        if self.args.dataset_text_field != "text" or self.args.completion_only_loss:
            name = "completion_only_loss" if self.args.completion_only_loss else "dataset_text_field"
            raise session.error(f"{name} does not apply to the texts of formatting_func; leave it out.")

        def formatted(row: Any) -> dict[str, str]:
            text = function(row)
            if not isinstance(text, str):
                raise session.error(
                    f"formatting_func returns a {type(text).__name__} for a row; in TRL 1.16 it gets one row and "
                    "returns a text."
                )
            return {"text": text}

        return dataset.map(formatted, remove_columns=columns)

    def _set_dataset(self, tree: ConfigTree, rows: DataSource) -> None:
        super()._set_dataset(tree, rows)
        if rows.columns and not {"prompt", "messages", "conversations"} & {*rows.columns}:
            tree.set(("dataset_text_field",), self.args.dataset_text_field, self.source)


class DPOTrainer(RecordedTrainer):
    """TRL's DPOTrainer."""

    program = "dpo"
    parameters = (
        *("model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"),
        *("compute_metrics", "callbacks", "optimizers", "quantization_config", "peft_config"),
    )


class KTOTrainer(RecordedTrainer):
    """TRL's KTOTrainer."""

    program = "kto"
    parameters = DPOTrainer.parameters

    def _rows(self, dataset: Any, what: str) -> DataSource:
        """The rows; pairs of the Hub are written to a file, by whose columns they are known as pairs. Raises
        ConfigError for other columns than TRL reads."""
        rows, session = super()._rows(dataset, what), current_session()
        columns = {*rows.columns}
        if not columns or {"completion", "label"} <= columns:
            return rows
        if {"chosen", "rejected"} <= columns:
            if rows.is_streamed:
                raise session.error(
                    f"{what} is streamed, and its pairs become two rows each; load it without streaming=True, so that "
                    "its rows can be written to a file."
                )
            return rows if rows.split is None else written_rows(dataset, what, self._data_folder())
        raise session.error(
            f"{what} has the columns {', '.join(rows.columns)}; TRL's KTO reads prompt, completion and label, or "
            "chosen and rejected."
        )


class RewardTrainer(RecordedTrainer):
    """TRL's RewardTrainer."""

    program = "reward"
    parameters = SFTTrainer.parameters[:6] + SFTTrainer.parameters[7:-1]


class CPOTrainer(RecordedTrainer):
    """TRL's experimental CPOTrainer."""

    program = "cpo"
    parameters = (
        *("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"),
        *("model_init", "callbacks", "optimizers", "preprocess_logits_for_metrics"),
        *("peft_config", "compute_metrics"),
    )


class ORPOTrainer(RecordedTrainer):
    """TRL's experimental ORPOTrainer."""

    program = "orpo"
    parameters = CPOTrainer.parameters


TRAINERS: Mapping[str, Callable[..., Any]] = {
    trainer.__name__: trainer
    for trainer in (
        *(GRPOTrainer, RLOOTrainer, SFTTrainer, DPOTrainer, KTOTrainer, RewardTrainer),
        *(CPOTrainer, ORPOTrainer),
    )
}
