"""Stand-ins for TRL's configuration classes, whose fields are the ledgers' rows; its parser of command lines and YAML
files, and its helpers."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import NUMBER, UNSET, KeyMapping, typed_value
from strop.compat.trl.reader import LEDGERS, TrlProgram
from strop.compat.trl.script.session import RefusedArgument, current_session
from strop.config.load.config_tree import Source
from strop.config.load.yaml_file import parse_yaml, read_bounded
from strop.errors import ConfigError
from strop.printable import did_you_mean
from strop.workers.json_text import parse_json

MODEL_FIELDS = (
    *("model_name_or_path", "model_revision", "dtype", "attn_implementation", "use_peft", "lora_r"),
    *("lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save"),
    *("lora_task_type", "use_rslora", "use_dora", "load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type"),
    *("use_bnb_nested_quant", "bnb_4bit_quant_storage"),
)
"""Fields of ModelConfig, in TRL's order."""
SCRIPT_FIELDS = (
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("dataset_streaming", "ignore_bias_buffers"),
)
"""Fields of ScriptArguments, in TRL's order."""
_OF_PROGRAMS = (
    "datasets",
    "reward_funcs",
    "reward_model_name_or_path",
    "num_processes",
    "accelerate_config",
    "env.*",
)
"""Options of the programs `trl grpo` and others, which no configuration has."""
_PROPERTIES: Mapping[str, Any] = {
    "process_index": 0,
    "local_process_index": 0,
    "n_gpu": 1,
    "should_log": True,
    "should_save": True,
}
"""Properties of transformers' TrainingArguments in one process."""
_OPTIONAL_TYPES = {
    "a list of numbers, or null": list[float] | None,
    "a mapping, or null": dict | str | None,
    "an integer, or null": int | None,
    "a number, or null": float | None,
    "true or false, or null": bool | None,
    "a string or a list of strings, or null": list[str] | None,
}


class RecordedConfig:
    """Base of the stand-ins: values of the fields, and the line of the script that set each."""

    program: TrlProgram | None = None
    """Program whose ledger has the fields; None for ModelConfig and ScriptArguments."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        if len(arguments) > 1:
            raise RefusedArgument(
                f"{current_session().place()}: {type(self).__name__} has {len(arguments)} arguments without names; "
                f"write the names after the first one, {names[0]}."
            )
        values = dict(zip(names, arguments, strict=False)) | values
        if unknown := [name for name in values if name not in names]:
            raise RefusedArgument(
                f"{current_session().place()}: {type(self).__name__} has no argument {unknown[0]!r}"
                f"{did_you_mean(unknown[0], names) or '.'} The fields of TRL 1.16 are listed by "
                f"`strop keys {LEDGERS[self.program or 'grpo'].dialect}`."
            )
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = values[field.name] if field.name in values else default_of(field)
            object.__setattr__(self, field.name, value)
            if field.name in values:
                self._place(field.name)
        self.__post_init__()

    def __post_init__(self) -> None:
        """For subclasses in scripts."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in {field.name for field in dataclasses.fields(self)}:  # type: ignore[arg-type]
            if not name.startswith("_"):
                names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
                raise current_session().error(
                    f"{type(self).__name__} has no field {name!r}{did_you_mean(name, names) or '.'} Strop would not "
                    "read it; leave the assignment out."
                )
            current_session().note(f"{name}={value!r} has no effect on {type(self).__name__}.")
        object.__setattr__(self, name, value)
        self._place(name)

    def __getattr__(self, name: str) -> Any:
        if name in _PROPERTIES:
            return _PROPERTIES[name]
        if name == "world_size":
            return process_count()
        if name == "device":
            import torch

            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        raise AttributeError(
            f"Strop's {type(self).__name__} has no attribute {name!r}; it has the fields of TRL 1.16."
        )

    def _place(self, name: str) -> None:
        session = current_session()
        self.__dict__.setdefault("_places", {})[name] = session.option_source(name) or session.source()

    def to_dict(self) -> dict[str, Any]:
        """The fields with their values."""
        return {field.name: copy.copy(getattr(self, field.name)) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def to_json_string(self) -> str:
        """The fields with their values, as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """A block that the main process executes first; there is one process."""
        yield

    def written(self) -> Iterator[tuple[str, Any, Source]]:
        """Fields of TRL that differ from their defaults, with the lines that set them."""
        places = self.__dict__.get("_places", {})
        ledger = LEDGERS[self.program or "grpo"]
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            row = ledger.find_exact(field.name)
            if row is None:
                continue  # a field of the script's own subclass
            value = plain(getattr(self, field.name), field.name)
            if isinstance(value, str) and not row.value_type.accepts(value):
                value = _from_text(value, row)
            if value != default_of_row(row):
                yield field.name, value, places.get(field.name) or current_session().source()


def process_count() -> int:
    """Number of processes of a launcher, by WORLD_SIZE as `accelerate launch` and torchrun set it; they multiply the
    batch. Raises ConfigError for a value that is no number."""
    written = os.environ.get("WORLD_SIZE") or "1"
    if not written.isdecimal():
        raise ConfigError(f"The environment variable WORLD_SIZE is {written!r}; write a number of processes.")
    return int(written)


def _from_text(text: str, row: KeyMapping) -> Any:
    """The value of a text of the command line, where the field does not take the text itself."""
    if text.startswith(("{", "[")):
        try:
            return parse_json(text)
        except ValueError:
            return text
    return typed_value(text, row.value_type)


def plain(value: Any, what: str) -> Any:
    """The value as in a YAML file. Raises ConfigError for an object that has no such form."""
    if isinstance(value, Enum):
        return plain(value.value, what)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{what}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(item, what) for item in items]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value)
    if type(value).__module__ == "torch" and str(value).startswith("torch."):
        return str(value).removeprefix("torch.")
    if hasattr(value, "tolist"):
        return plain(value.tolist(), what)
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise current_session().error(
        f"{what} is a {type(value).__name__}, which Strop cannot read; write a number, a text, a list or a dict."
    )


def default_of_row(row: KeyMapping) -> Any:
    """The default of a field; None for a field without one."""
    return None if row.default is UNSET else copy.copy(row.default)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a dataclass field; a copy of one that can be changed. Raises TypeError for a field without one."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise TypeError(f"missing the argument {field.name!r}")
    return field.default


def _annotation(row: KeyMapping) -> Any:
    """The Python type of a field, by which parsers of command lines read its value."""
    default = default_of_row(row)
    if default is None and row.value_type.description in _OPTIONAL_TYPES:
        return _OPTIONAL_TYPES[row.value_type.description]
    if row.value_type is NUMBER:
        return float
    kinds = (bool, int, float, str)
    if isinstance(default, list):
        return list[str]
    return next((kind for kind in kinds if isinstance(default, kind)), str | None)


def _field(row: KeyMapping) -> tuple[str, Any, Any]:
    default = default_of_row(row)
    spec: Any = (
        dataclasses.field(default_factory=lambda: copy.copy(default))
        if isinstance(default, list | dict)
        else dataclasses.field(default=default)
    )
    return row.key, _annotation(row), spec


def _make(name: str, rows: list[KeyMapping], program: TrlProgram | None) -> type[RecordedConfig]:
    made: type[RecordedConfig] = dataclasses.make_dataclass(
        name, [_field(row) for row in rows], bases=(RecordedConfig,), init=False, eq=False
    )
    made.program = program
    made.__module__ = "trl"
    return made


def _rows(program: TrlProgram, names: tuple[str, ...]) -> list[KeyMapping]:
    rows = {row.key: row for row in LEDGERS[program].rows}
    return [rows[name] for name in names]


def _config_rows(program: TrlProgram) -> list[KeyMapping]:
    """Rows of a configuration class: `output_dir`, the first argument, and the others."""
    others = (*MODEL_FIELDS, *SCRIPT_FIELDS, *_OF_PROGRAMS)
    rows = [row for row in LEDGERS[program].rows if row.key not in others and "." not in row.key]
    return sorted(rows, key=lambda row: row.key != "output_dir")


def _name_in_trl(program: TrlProgram) -> str:
    """Beginning of the names of a program's classes in TRL."""
    return "Reward" if program == "reward" else program.upper()


CONFIGURATIONS: Mapping[TrlProgram, type[RecordedConfig]] = {
    program: _make(f"{_name_in_trl(program)}Config", _config_rows(program), program) for program in LEDGERS
}
"""Stand-ins for GRPOConfig and the other configurations."""
ModelConfig = _make("ModelConfig", _rows("grpo", MODEL_FIELDS), None)
ScriptArguments = _make("ScriptArguments", _rows("grpo", SCRIPT_FIELDS), None)


def config_of(program: TrlProgram, args: Any, model_name: str) -> RecordedConfig:
    """The configuration of a trainer: `args`, or its defaults, of which TRL names the folder by the model.

    Raises ConfigError for a configuration of another class.
    """
    wanted = CONFIGURATIONS[program]
    if args is None:
        return wanted(output_dir=f"{model_name.rstrip('/').rpartition('/')[2]}-{_name_in_trl(program)}")
    if not isinstance(args, wanted):
        raise current_session().error(
            f"args is a {type(args).__name__}; write a {wanted.__name__}, the configuration of this trainer."
        )
    return args


@dataclasses.dataclass
class DatasetConfig:
    """One dataset of a mixture: arguments of `load_dataset`, columns to keep, and its fraction."""

    path: str
    name: str | None = None
    data_dir: str | None = None
    data_files: str | list[str] | dict[str, str] | None = None
    split: str = "train"
    columns: list[str] | None = None
    fraction: float | None = None


@dataclasses.dataclass
class DatasetMixtureConfig:
    """Datasets that are read one after another."""

    datasets: list[DatasetConfig] = dataclasses.field(default_factory=list)
    streaming: bool = False
    test_split_size: float | None = None

    def __post_init__(self) -> None:
        self.datasets = [DatasetConfig(**one) if isinstance(one, Mapping) else one for one in self.datasets]


def get_dataset(mixture_config: DatasetMixtureConfig) -> Any:
    """The datasets of a mixture, concatenated, with the splits `train` and, if asked for, `test`."""
    import datasets

    session, parts = current_session(), []
    for one in mixture_config.datasets:
        if one.fraction is not None:
            raise session.error(
                "fraction of a dataset mixture is not read; write data.train as a list with weights."
            )
        loaded = datasets.load_dataset(
            one.path,
            name=one.name,
            data_dir=one.data_dir,
            data_files=one.data_files,
            split=one.split,
            streaming=mixture_config.streaming,
        )
        parts.append(loaded if one.columns is None else loaded.select_columns(one.columns))
    if not parts:
        raise session.error("datasets is empty; write at least one dataset.")
    whole = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    if mixture_config.test_split_size is not None:
        return whole.train_test_split(test_size=mixture_config.test_split_size)
    return datasets.DatasetDict({"train": whole})


def get_peft_config(model_args: Any) -> Any:
    """The adapter that ModelConfig describes; None without one."""
    if not model_args.use_peft:
        return None
    from peft import LoraConfig

    more = (
        {}
        if model_args.lora_target_parameters is None
        else {"target_parameters": model_args.lora_target_parameters}
    )
    return LoraConfig(
        task_type=model_args.lora_task_type,
        r=model_args.lora_r,
        target_modules=model_args.lora_target_modules,
        lora_alpha=model_args.lora_alpha,
        lora_dropout=model_args.lora_dropout,
        bias="none",
        use_rslora=model_args.use_rslora,
        use_dora=model_args.use_dora,
        modules_to_save=model_args.lora_modules_to_save,
        **more,
    )


def get_quantization_config(model_args: Any) -> Any:
    """Values of a BitsAndBytesConfig; None for weights that are not quantized."""
    if model_args.load_in_4bit:
        return {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": model_args.bnb_4bit_quant_type,
            "bnb_4bit_use_double_quant": model_args.use_bnb_nested_quant,
        }
    return {"load_in_8bit": True} if model_args.load_in_8bit else None


def get_kbit_device_map() -> None:
    """None: Strop places the weights."""
    return


@cache
def make_trl_parser() -> type[Any]:
    """TrlParser, a subclass of transformers' HfArgumentParser."""
    from transformers import HfArgumentParser

    class TrlParser(HfArgumentParser):
        """Parser of `--name value` and of `--config FILE`, a YAML file with defaults and `env`."""

        def __init__(self, dataclass_types: Any = None, **options: Any) -> None:
            types = dataclass_types or []
            types = list(types) if isinstance(types, Iterable) else [types]
            if named := [one.__name__ for one in types if "config" in one.__dataclass_fields__]:
                raise ValueError(
                    f"{named[0]} has a field 'config', which is the name of TrlParser's own option"
                )
            super().__init__(dataclass_types=types, **options)

        def parse_args_and_config(
            self,
            args: Iterable[str] | None = None,
            return_remaining_strings: bool = False,
            fail_with_unknown_args: bool = True,
            separate_remaining_strings: bool = False,
        ) -> tuple[Any, ...]:
            """The dataclasses, and the words that none of them has if `return_remaining_strings` asks for them."""
            words = list(sys.argv[1:] if args is None else args)
            unknown: list[str] = []
            if "--config" in words:
                at = words.index("--config")
                if at + 1 == len(words):
                    raise current_session().error("--config has no value; write --config FILE.")
                unknown = self.set_defaults_with_config(**_read_config(words[at + 1]))
                del words[at : at + 2]
            parsed = self.parse_args_into_dataclasses(
                args=words, return_remaining_strings=return_remaining_strings
            )
            if return_remaining_strings:
                *found, rest = parsed
                return (*found, unknown, rest) if separate_remaining_strings else (*found, unknown + rest)
            if unknown and fail_with_unknown_args:
                raise ValueError(f"Unknown arguments from config file: {unknown}")
            return tuple(parsed)

        def set_defaults_with_config(self, **values: Any) -> list[str]:
            """Replace the defaults of options; returns those that the parser does not have, as words."""
            known = {action.dest: action for action in self._actions}
            for name, value in values.items():
                if name in known:
                    known[name].default, known[name].required = value, False
            rest = {name: value for name, value in values.items() if name not in known}
            return [word for name, value in rest.items() for word in (f"--{name}", str(value))]

    return TrlParser


def _read_config(path: str) -> dict[str, Any]:
    """The options of a YAML file, whose `env` becomes environment variables."""
    import yaml

    try:
        _, values = parse_yaml(read_bounded(Path(path)))
    except (yaml.YAMLError, ConfigError) as error:
        reason = " ".join(str(error).split())
        raise current_session().error(f"--config {path} cannot be read: {reason}") from None
    if not isinstance(values, dict):
        raise current_session().error(f"--config {path} has no options; write name: value.")
    for name, value in (values.pop("env", None) or {}).items():
        os.environ[name] = str(value)
    return values
