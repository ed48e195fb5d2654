"""Tasks that a package generates: datasets of reasoning_gym, and datasets of verifiers environments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache
from json import dumps, loads
from pathlib import Path
from typing import Any

from strop.config.schema.data import GENERATORS, GeneratorConfig
from strop.config.user_code import ImportPath, import_user_module
from strop.data.sources.rows import InMemoryRows, Row
from strop.errors import ConfigError, DataError, MissingExtraError


def is_generator(path: str) -> bool:
    """Whether a path names a generator of tasks."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme in GENERATORS


def generate_rows(path: str, section: GeneratorConfig, split: str | None) -> InMemoryRows:
    """The rows of a generator. Raises `DataError` for an unknown dataset or argument, and `MissingExtraError`."""
    scheme, _, name = path.partition("://")
    if scheme == "reasoning_gym":
        if split is not None:
            raise DataError(
                f"{path} has no split; remove `split: {split}`, and give eval tasks another seed."
            )
        return InMemoryRows(path, _reasoning_gym(name, section))
    return InMemoryRows(path, _verifiers(name, section, split))


def _reasoning_gym(name: str, section: GeneratorConfig) -> list[Row]:
    """Columns `prompt` and `question`, `answer`, and `metadata`, which the reward `reasoning_gym` needs."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingExtraError(
            "reasoning_gym:// needs the package reasoning-gym. Install it: pip install 'strop[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise DataError(f"reasoning_gym has no dataset {name!r}; it has {', '.join(sorted(DATASETS))}.")
    size = {} if section.size is None else {"size": section.size}
    try:
        dataset = reasoning_gym.create_dataset(name, seed=section.seed, **size, **section.args)
        entries = [dataset[index] for index in range(len(dataset))]
    except (AssertionError, TypeError, ValueError) as error:
        options = ", ".join(inspect.signature(DATASETS[name][1]).parameters)
        raise DataError(
            f"reasoning_gym cannot make {name} with {dict(section.args)}: {error}. Its arguments: {options}."
        ) from error
    return [{"prompt": entry["question"], **entry} for entry in entries]


def _verifiers(name: str, section: GeneratorConfig, split: str | None) -> list[Row]:
    """Columns of the environment's dataset: `prompt`, `example_id`, and, where it has them, `answer` and `info`."""
    environment = load_verifiers_environment(name, section.args)
    if not hasattr(environment, "get_dataset"):
        return _episode_rows(name, environment, section, split)
    if split not in (None, "train", "eval"):
        raise DataError(f"verifiers://{name} has the splits train and eval, and no split {split!r}.")
    get = environment.get_eval_dataset if split == "eval" else environment.get_dataset
    size = -1 if section.size is None else section.size
    dataset = get(n=size, seed=section.seed)
    return [{"answer": "", **row} for row in dataset.to_list()]


def _episode_rows(name: str, environment: Any, section: GeneratorConfig, split: str | None) -> list[Row]:
    """Columns `prompt`, `answer` and `task`, the task's data, of an environment of verifiers 0.4."""
    if split is not None:
        raise DataError(
            f"verifiers://{name} has no split {split!r}: write the taskset's own options as `generator.args.taskset`."
        )
    tasks = environment.taskset
    if section.size is not None:
        tasks = tasks.take(section.size)
    if not tasks.bounded:
        raise DataError(f"verifiers://{name} has tasks without end; write their number as `generator.size`.")
    rows = []
    for number, task in enumerate(tasks):
        data = task.data.model_dump(mode="json", exclude_none=True)
        prompt = data.get("prompt") or data.get("name") or f"Task {number}"
        rows.append({"prompt": prompt, "answer": str(data.get("answer", "")), "task": dumps(data)})
    return rows


def load_verifiers_environment(name: str, args: Mapping[str, Any]) -> Any:
    """An environment: the name of an installed one, or `file.py:load_environment`. Loaded once per process.

    Raises `ConfigError` if it cannot be loaded, and `MissingExtraError`.
    """
    return _load_environment(name, dumps(dict(args), sort_keys=True))


@cache
def _load_environment(name: str, args: str) -> Any:
    try:
        import verifiers
    except ImportError as error:
        raise MissingExtraError(
            "A verifiers environment needs the package verifiers. Install it: pip install 'strop[verifiers]'"
        ) from error
    if by_path := ":" in name and hasattr(verifiers, "load_environment"):
        load = ImportPath(name, f"verifiers environment {name!r}", "function", (), ConfigError).load()
    else:
        load = getattr(verifiers, "load_environment", None) or _load_episodes
    try:
        return load(**loads(args)) if by_path else load(name, **loads(args))
    except Exception as error:
        hint = "" if ":" in name or Path(name).suffix else f" Install its package (prime env install {name})."
        raise ConfigError(
            f"The verifiers environment {name!r} cannot be loaded with {args}: {type(error).__name__}: {error}.{hint}"
        ) from error


def _load_episodes(name: str, **block: Any) -> Any:
    """An environment of verifiers 0.4: `block` is its `[env]` block, and `name` the id of its taskset, or a file."""
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    if name.endswith(".py"):
        module = import_user_module(name, "verifiers environment", ConfigError)
        name = Path(name).stem.replace("-", "_").lower()
        sys.modules.setdefault(name, module)
    taskset = {"id": name, **block.pop("taskset", {})}
    return load_environment(resolve_env_config({**block, "taskset": taskset}))
