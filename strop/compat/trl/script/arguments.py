"""Stand-ins for TRL's parser of command lines and YAML files, its mixtures of datasets, and its helpers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from strop.compat.trl.script.session import current_session


@dataclass
class DatasetConfig:
    """One dataset of a mixture: arguments of `load_dataset`, columns to keep, and its fraction."""

    path: str
    name: str | None = None
    data_dir: str | None = None
    data_files: str | list[str] | dict[str, str] | None = None
    split: str = "train"
    columns: list[str] | None = None
    fraction: float | None = None


@dataclass
class DatasetMixtureConfig:
    """Datasets that are read one after another."""

    datasets: list[DatasetConfig] = field(default_factory=list)
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
    """None: weights that are not quantized. Raises ConfigError for the others."""
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(model_args, name):
            raise current_session().error(
                f"{name}: Strop trains on weights that are not quantized; leave it False."
            )
    return None


def get_kbit_device_map() -> None:
    """None: weights that are not quantized are placed by Strop."""
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
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise current_session().error(f"--config {path} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise current_session().error(f"--config {path} has no options; write name: value.")
    for name, value in (values.pop("env", None) or {}).items():
        os.environ[name] = str(value)
    return values
