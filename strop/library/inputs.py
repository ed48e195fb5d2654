"""Data, models and functions that `strop.train` gets in addition to a run file, as parts of the run.

Rows in memory become a file of the run's folder, so that a resume reads the same rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.load.config_tree import KeyPath
from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.data import TasksetConfig
from strop.config.schema.run import in_process_functions
from strop.errors import ConfigError, DataError, RunFolderError
from strop.library.callables import Rewards, require_one_process, run_name, split_rewards
from strop.models.fingerprint import model_fingerprint
from strop.python_rewards import PythonReward
from strop.workers.files import atomic_path, atomic_write, replace_folder, temporary_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_RECORD = "python.json"
"""File of a run's `inputs` with the functions that only its Python program has."""
_MEMORY = "memory"
"""Path of data and of a model before they are written."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Arguments of `strop.train` that are parts of a run."""

    data: Rows | None = None
    eval: Rows | Mapping[str, Rows] | None = None
    model: str | Path | PreTrainedModel | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    reward: Rewards | None = None
    workflow: Callable[..., Any] | str | None = None
    tools: Sequence[Callable[..., Any] | str] | None = None
    advantages: Callable[..., Any] | str | None = None
    loss: Callable[..., Any] | str | None = None
    tables: dict[KeyPath, pa.Table] = field(default_factory=dict, init=False)
    """Data by the key of its taskset."""

    def values(self, written: Callable[[KeyPath], Any]) -> dict[KeyPath, Any]:
        """Values of the run file for these arguments; `written` are those that the run file has.

        Raises DataError for data that cannot be rows, and ConfigError for arguments that exclude each other.
        """
        found: dict[KeyPath, Any] = {}
        if self.data is not None:
            at = ("data", "train")
            section = written(at) if isinstance(written(at), dict) else {}
            found |= self._taskset(at, self.data, "data", section)
        if self.eval is not None:
            found |= self._eval(written)
        if self.model is not None:
            is_path = isinstance(self.model, str | Path)
            found["model", "path"] = str(self.model) if is_path else _MEMORY
        if self.tokenizer is not None and (self.model is None or isinstance(self.model, str | Path)):
            raise ConfigError(
                "tokenizer belongs to a loaded model. Write the folder of another tokenizer as model.tokenizer."
            )
        entries, _ = split_rewards(self.reward)
        if entries:
            found["reward", "functions"] = [*_functions(written(("reward",))), *entries]
        return found | self._workflow() | self._algorithm(written)

    def _taskset(
        self, at: KeyPath, rows: Rows, argument: str, section: Mapping[str, Any]
    ) -> dict[KeyPath, Any]:
        table = self.tables[at] = to_table(rows, argument)
        _require_prompt(table, section, argument)
        found: dict[KeyPath, Any] = {(*at, "path"): _MEMORY}
        if "answer" not in section and "answer" not in table.column_names:
            found[*at, "answer"] = None
        return found

    def _eval(self, written: Callable[[KeyPath], Any]) -> dict[KeyPath, Any]:
        named = self.eval if isinstance(self.eval, Mapping) else {"eval": self.eval}
        if not named:
            raise DataError(
                "eval is an empty dict. Pass rows, or a dict of rows by the name of their taskset."
            )
        others = {str(one.get("name", "eval")): one for one in written(("data", "eval")) or ()}
        sections = []
        for number, (name, rows) in enumerate(named.items()):
            section = others.get(name, {})
            at = ("data", "eval", str(number))
            argument = f"eval[{name!r}]" if len(named) > 1 else "eval"
            values = self._taskset(at, rows, argument, section)
            sections.append(section | {"name": name} | {keys[-1]: value for keys, value in values.items()})
        return {("data", "eval"): sections}

    def _workflow(self) -> dict[KeyPath, Any]:
        if self.workflow is not None and self.tools is not None:
            raise ConfigError(
                "workflow and tools exclude each other; a workflow calls its own tools. Pass one."
            )
        if self.tools is not None:
            if not self.tools:
                raise ConfigError("tools is empty. Pass at least one function, or omit it.")
            names = [run_name(tool, "tools") for tool in self.tools]
            return {("rollout", "workflow", "name"): "tools", ("rollout", "workflow", "args", "tools"): names}
        if self.workflow is not None:
            return {("rollout", "workflow", "name"): run_name(self.workflow, "workflow")}
        return {}

    def _algorithm(self, written: Callable[[KeyPath], Any]) -> dict[KeyPath, Any]:
        given = {name: getattr(self, name) for name in ("advantages", "loss")}
        found: dict[KeyPath, Any] = {
            ("algorithm", name): run_name(value, name) for name, value in given.items() if value is not None
        }
        if not found:
            return found
        section = written(("algorithm",))
        kind = section.get("type", "custom") if isinstance(section, dict) else section or "custom"
        if kind != "custom":
            raise ConfigError(
                f"{next(iter(found))[1]} replaces a part of the algorithm, and the run has algorithm.type: {kind}. "
                "Write algorithm: {type: custom}, whose fields are those of GRPO, or omit the section."
            )
        return {("algorithm", "type"): "custom", **found}

    def attach(self, loaded: LoadedRun) -> tuple[LoadedRun, tuple[PythonReward, ...]]:
        """The run with its data and model in files of its folder, and the rewards without an import path.

        Raises ConfigError for a function that other processes of the run would need and do not find.
        """
        _, rewards = split_rewards(self.reward)
        if loaded.stages:
            stages = tuple(self._attach_one(stage, rewards) for stage in loaded.stages)
            return replace(loaded, run=stages[-1].run, stages=stages), rewards
        return self._attach_one(loaded, rewards), rewards

    def _attach_one(self, loaded: LoadedRun, rewards: Sequence[PythonReward]) -> LoadedRun:
        run = loaded.run
        require_one_process(run)
        run = self._with_files(run)
        record: dict[str, list[str]] = {}
        if rewards:
            record["reward"] = [
                getattr(each.function, "__qualname__", type(each.function).__name__) for each in rewards
            ]
        for key, name in in_process_functions(run):
            record.setdefault(key, []).append(name)
        file = run.folder_path / INPUTS / _RECORD
        if record:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, json.dumps(record, indent=1) + "\n")
        return replace(loaded, run=run.with_interpolations(loaded.run.interpolations))

    def _with_files(self, run: Run) -> Run:
        folder = run.folder_path
        data = run.data
        for at, table in self.tables.items():
            if at[1] == "train":
                path = str(write_table(table, folder, "train"))
                data = data.model_copy(update={"train": data.train.model_copy(update={"path": path})})
            else:
                section = data.eval[int(at[2])]
                path = str(write_table(table, folder, f"eval-{section.name}"))
                others = list(data.eval)
                others[int(at[2])] = section.model_copy(update={"path": path})
                data = data.model_copy(update={"eval": tuple(others)})
        changes: dict[str, Any] = {"data": data}
        if self.model is not None and not isinstance(self.model, str | Path):
            changes["model"] = run.model.model_copy(update={"path": str(self._write_model(folder))})
        return run.model_copy(update=changes)

    def _write_model(self, folder: Path) -> Path:
        from strop.library.policy import write_model

        assert self.model is not None and not isinstance(self.model, str | Path)
        (folder / INPUTS).mkdir(parents=True, exist_ok=True)
        written = write_model(self.model, self.tokenizer, temporary_path(folder / INPUTS / "model"))
        path = folder / INPUTS / f"model-{model_fingerprint(str(written)).removeprefix('contents ')}"
        replace_folder(written, path)
        return path


def require_functions(run: Run, rewards: Sequence[PythonReward]) -> None:
    """Raise RunFolderError for a run that was started with reward functions of a Python program, and has none now."""
    file = run.folder_path / INPUTS / _RECORD
    if rewards or not run.reward.is_empty or run.resume != "auto" or not file.is_file():
        return
    names = json.loads(file.read_text(encoding="utf-8")).get("reward", ())
    if names:
        raise RunFolderError(
            f"The run in {run.folder_path} was started from Python with the reward {', '.join(names)}, which no import "
            "path names, so only that program has it. Continue it there, with the same call of strop.train(..., "
            "reward=...); or move the function into a file, and start a new run with reward: file.py:function."
        )


def _require_prompt(table: pa.Table, section: Mapping[str, Any], argument: str) -> None:
    """Raise DataError for rows without the column that the run file names, or that is the default."""
    offline = any(section.get(name) for name in ("response", "chosen", "text"))
    column = section.get("prompt", TasksetConfig.model_fields["prompt"].default)
    if not offline and str(column).partition(".")[0] not in table.column_names:
        raise DataError(
            f"{argument} has no column {column!r} for the prompt; it has {', '.join(table.column_names)}. Rename the "
            "column, or write its name in the run, as data.train.prompt."
        )


def _functions(reward: Any) -> list[Any]:
    """The entries of `reward.functions` that a run file has, written as any of its shorthands."""
    from strop.config.schema.reward import expand_reward

    expanded = expand_reward(reward) if reward else {}
    return list(expanded.get("functions", ()))


Rows = Any
"""A list of dicts, a `datasets.Dataset` or `IterableDataset`, a pandas or polars data frame, an Arrow table, or another
object with Arrow's C stream."""
INPUTS = "inputs"
"""Folder, in a run's folder, of what the run got from Python."""


def to_table(rows: Rows, argument: str) -> pa.Table:
    """The rows as an Arrow table; `argument` names them in messages.

    Raises DataError for no rows, for rows with different keys, and for values that no column can hold.
    """
    table = _convert(rows, argument)
    if table.num_rows == 0:
        raise DataError(f"{argument} has no rows. Pass at least one.")
    return table


def write_table(table: pa.Table, folder: Path, name: str) -> Path:
    """Write the table into a run's folder, under a name with the digest of its content; returns the file."""
    digest = hashlib.sha256(str(table.schema.remove_metadata()).encode())
    for batch in table.replace_schema_metadata(None).combine_chunks().to_batches():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        digest.update(sink.getvalue())
    file = folder / INPUTS / f"{name}-{digest.hexdigest()[:12]}.parquet"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            pq.write_table(table, temporary)
    return file


def _convert(rows: Rows, argument: str) -> pa.Table:
    kind = type(rows)
    library = kind.__module__.partition(".")[0]
    try:
        if isinstance(rows, pa.Table):
            return rows
        if library == "datasets" and isinstance(rows, Mapping):
            raise DataError(
                f"{argument} is a {kind.__name__} with the splits {', '.join(map(str, rows))}. Pass one of them, such "
                f"as {argument}=dataset[{next(iter(rows), 'train')!r}]."
            )
        if library == "datasets" and hasattr(rows, "with_format") and hasattr(rows, "data"):
            return rows.with_format("arrow")[:]
        if library == "pandas" and hasattr(rows, "columns"):
            return pa.Table.from_pandas(rows, preserve_index=False)
        if library == "polars" and hasattr(rows, "to_arrow"):
            return rows.to_arrow()
        if library == "polars" and hasattr(rows, "collect"):
            raise DataError(
                f"{argument} is a polars {kind.__name__}, which has no rows yet. Pass {argument}=frame.collect()."
            )
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise DataError(
                f"{argument} is of type {kind.__name__}. Pass a list of dicts, a datasets.Dataset, or a data frame; a "
                "path belongs into the run, as data.train.path."
            )
        return pa.Table.from_pylist(_checked(list(rows), argument))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{argument} has a column whose values are of different types, or of a type that Arrow does not have: "
            f"{' '.join(str(error).split())}. Write values of one type into each column."
        ) from error


def _checked(rows: Sequence[Any], argument: str) -> list[Any]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{argument}[{number}] is of type {type(row).__name__}. Each row is a dict.")
        if row.keys() != rows[0].keys():
            differing = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise DataError(
                f"{argument}[{number}] has other keys than {argument}[0]: {', '.join(differing)}. Give all rows the "
                "same keys, with None where a value is missing."
            )
    return [dict(row) for row in rows]
