"""Checks of a run before anything heavy is loaded: files, folders and environment variables that are
missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.config.checks.engine import fixed_weights_fault
from strop.config.effective_reward import configured_rewards, lacks_reward
from strop.config.load.config_tree import Source
from strop.config.load.library_arguments import argument_names
from strop.config.load.loader import LoadedRun
from strop.config.paths import existing_path, gguf_file, is_local
from strop.config.plan.machine import described_machine
from strop.config.schema import Run
from strop.config.schema.algorithm import CustomConfig, DpoConfig, PpoConfig, SftConfig
from strop.config.schema.data import GENERATORS, TasksetConfig, is_template
from strop.config.schema.distillation import TeacherConfig
from strop.config.schema.inference_engine import (
    InferenceEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
)
from strop.config.schema.reward import RewardConfig
from strop.config.schema.tracking import TRACKING_SERVICES
from strop.config.schema.workflow import WorkflowConfig
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

NO_REWARD = (
    "reward: missing, so nothing scores the responses. Write a built-in (`reward: gsm8k`), your own function "
    "(`reward: file.py:name`), or pass a function to `strop.train` from Python."
)
_LIBRARIES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Name of the library of each type of engine that needs one."""
_DATA_SUFFIXES = (".parquet", ".jsonl", ".json", ".gz", ".zst", ".csv", ".tsv")
_WORKFLOW_FILES = ("tool_config", "function_file", "interaction_config", "agent_loops")
"""Arguments of the workflows `tools` and `verl_agents` that name a file."""
_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def missing_files(loaded: LoadedRun) -> list[str]:
    """Return one sentence per local file or folder of the run that is missing or empty.

    Names on the Hub and URLs are not checked.
    """
    run, sources = loaded.run, loaded.sources
    faults = [
        *_model(run.model.path, "model.path", sources),
        *(
            fault
            for where, taskset in run.data.training_tasksets().items()
            for fault in _tasks(taskset, f"{where}.path", sources)
        ),
        *(
            fault
            for index, taskset in enumerate(run.data.eval)
            for fault in _tasks(taskset, f"data.eval.{index}.path", sources)
        ),
    ]
    if isinstance(run.algorithm, PpoConfig) and run.algorithm.critic.model is not None:
        faults += _model(run.algorithm.critic.model.path, "algorithm.critic.model.path", sources)
    for number, teacher in enumerate(_teachers(run)):
        faults += _model(teacher.path, f"algorithm.distillation.teachers.{number}.path", sources)
    faults += _code(run, sources)
    for where, reward in configured_rewards(run).items():
        faults += _reward(reward, where, sources)
    for index, answers in enumerate(run.data.demonstrations):
        faults += _tasks(answers, f"data.demonstrations.{index}.path", sources)
    if lacks_reward(run) and not isinstance(run.algorithm, SftConfig | DpoConfig):
        faults.append(NO_REWARD)
    for index, model in enumerate(run.rollout.auxiliary_models):
        faults += _model(model.path, f"rollout.auxiliary_models.{index}.path", sources)
    faults += _workflow(run.rollout.workflow, "rollout.workflow.name", sources)
    for index, taskset in enumerate(run.data.eval):
        if taskset.workflow is not None:
            faults += _workflow(taskset.workflow, f"data.eval.{index}.workflow.name", sources)
    template = run.data.chat_template
    named = template not in ("tokenizer", "none") and not is_template(template)
    if named and not _is_file(template):
        faults.append(f"{_at('data.chat_template', sources)}: there is no file {template}.")
    faults += [
        f"{_at('record.monitors', sources)}: {name} is not installed: pip install 'strop[{name}]'"
        for name in run.record.monitors
        if name in TRACKING_SERVICES and find_spec(name) is None
    ]
    faults += _engine_library(run, sources)
    if (fault := fixed_weights_fault(run)) is not None:
        faults.append(f"{_at('rollout.engine.type', sources)}: {fault}.")
    faults += _server_key(run.rollout.engine, sources)
    faults += _unknown_arguments(run.rollout.engine, sources)
    parent = next(folder for folder in (run.folder_path, *run.folder_path.parents) if existing_path(folder))
    if not os.access(parent, os.W_OK | os.X_OK):
        faults.append(
            f"{_at('output', sources)}: {run.folder_path} cannot be created, because {parent} is not writable."
        )
    return faults


def _engine_library(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Faults of an engine whose library is not installed, or cannot load the model's format."""
    library = run.rollout.engine.type
    if library not in _LIBRARIES:
        return []
    where, faults = _at("rollout.engine.type", sources), []
    if described_machine() is None and find_spec(library) is None:
        faults.append(
            f"{where}: {_LIBRARIES[library]} is not installed: pip install 'strop[{library}]', or write "
            "`rollout.engine: native`; for a configuration of another tool --here does that."
        )
    if gguf_file(run.model.path) is not None:
        faults.append(
            f"{where}: {_LIBRARIES[library]} gets its weights from a folder with safetensors. Write one with `strop "
            f"export {run.model.path} --to FOLDER` and name it as model.path."
        )
    return faults


def _unknown_arguments(engine: InferenceEngineConfig, sources: Mapping[str, Source]) -> list[str]:
    """Return the names in `engine_kwargs` that the library does not have."""
    if not isinstance(engine, ServingEngineConfig) or not engine.engine_kwargs:
        return []
    known = argument_names(engine.type)
    return [
        f"{_at('rollout.engine.engine_kwargs', sources)}.{name}: not an argument of {known.owner}"
        f"{did_you_mean(name, known.names) or '.'} Remove it, or write one of its names."
        for name in engine.engine_kwargs
        if name not in known.names
    ]


def _server_key(engine: InferenceEngineConfig, sources: Mapping[str, Source]) -> list[str]:
    if not isinstance(engine, ServerConnectionConfig):
        return []
    name = engine.api_key_env
    if name is None or os.environ.get(name):
        return []
    return [f"{_at('rollout.engine.api_key_env', sources)}: the environment variable {name} is not set."]


def require_reward(run: Run, reward: Callable[..., Any] | None) -> None:
    """Raise `ConfigError` if neither the run file nor Python has a reward."""
    if reward is None and lacks_reward(run):
        raise ConfigError(NO_REWARD)


def _workflow(workflow: WorkflowConfig, field: str, sources: Mapping[str, Source]) -> list[str]:
    if workflow.name == "verifiers" and find_spec("verifiers") is None:
        return [f"{_at(field, sources)}: verifiers is not installed: pip install 'strop[verifiers]'"]
    files = [(field, workflow.name.rpartition(":")[0])] if ".py:" in workflow.name else []
    if workflow.name in ("tools", "verl_agents"):
        args = field.removesuffix("name") + "args"
        tools = workflow.args.get("tools")
        named = {**workflow.args, **(tools if isinstance(tools, dict) else {})}
        files += [(args, str(named[name])) for name in _WORKFLOW_FILES if named.get(name)]
    return [f"{_at(at, sources)}: there is no file {file}." for at, file in files if not _is_file(file)]


def _teachers(run: Run) -> tuple[TeacherConfig, ...]:
    if isinstance(run.algorithm, SftConfig | DpoConfig) or run.algorithm.distillation is None:
        return ()
    return run.algorithm.distillation.teachers


def _code(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Return the missing Python files of `model.imports` and custom datasets."""
    files = {"model.imports": [name for name in run.model.imports if name.endswith(".py")]}
    if isinstance(run.algorithm, CustomConfig):
        named = {"advantages": run.algorithm.advantages, "loss": run.algorithm.loss}
        for option, name in named.items():
            if name is not None and ".py:" in name:
                files[f"algorithm.{option}"] = [name.rpartition(":")[0]]
    sets: dict[str, TasksetConfig] = {**run.data.training_tasksets()}
    sets |= {f"data.eval.{i}": one for i, one in enumerate(run.data.eval)}
    for where, taskset in sets.items():
        if taskset.dataset is not None and ".py:" in taskset.dataset.name:
            files[f"{where}.dataset.name"] = [taskset.dataset.name.rpartition(":")[0]]
    return [
        f"{_at(field, sources)}: there is no file {file}."
        for field, names in files.items()
        for file in names
        if not _is_file(file)
    ]


def _reward(reward: RewardConfig, where: str, sources: Mapping[str, Source]) -> list[str]:
    files: dict[str, str] = {}
    faults = []
    for index, part in enumerate(reward.functions):
        file, colon, _ = part.function.rpartition(":")
        if colon and file.endswith(".py"):
            files[f"{where}.functions.{index}.function"] = file
    for index, model in enumerate(reward.models):
        faults += _model(model.path, f"{where}.models.{index}.path", sources)
        if model.chat_template != "tokenizer" and not is_template(model.chat_template):
            files[f"{where}.models.{index}.chat_template"] = model.chat_template
    for index, judge in enumerate(reward.judges):
        if judge.prompt.endswith(".jinja"):
            files[f"{where}.judges.{index}.prompt"] = judge.prompt
        if judge.api_key_env is not None and not os.environ.get(judge.api_key_env):
            field = f"{where}.judges.{index}.api_key_env"
            faults.append(f"{_at(field, sources)}: the environment variable {judge.api_key_env} is not set.")
    return faults + [
        f"{_at(field, sources)}: there is no file {file}."
        for field, file in files.items()
        if not _is_file(file)
    ]


def _at(field: str, sources: Mapping[str, Source]) -> str:
    source = sources[field]
    return f"{source}: {field}"


def _is_file(path: str) -> bool:
    place = existing_path(path)
    return place is not None and place.is_file()


def _model(path: str, field: str, sources: Mapping[str, Source]) -> list[str]:
    if not is_local(path) or sources[field].kind == "stage":
        return []
    if gguf_file(path) is not None:
        if find_spec("gguf") is None:
            return [
                f"{_at(field, sources)}: reading {path} needs the package gguf: pip install 'strop[gguf]'"
            ]
        return []
    folder = existing_path(path)
    if folder is None or not folder.is_dir():
        return [f"{_at(field, sources)}: there is no model folder {path}."]
    missing = [
        what
        for what, names in (
            ("no config.json", ("config.json",)),
            ("no weights (*.safetensors)", _WEIGHTS),
            ("no tokenizer", _TOKENIZERS),
        )
        if not any(next(folder.glob(name), None) for name in names)
    ]
    return [f"{_at(field, sources)}: the model folder {path} has {', '.join(missing)}."] if missing else []


def hub_models(run: Run) -> list[str]:
    """Return one sentence for a model path that names no folder here, and so may name a model of the hub."""
    path = run.model.path
    if is_local(path):
        return []
    return [
        f"model: there is no folder {path} here, so the run loads {path} from the Hugging Face hub (or its cache)"
    ]


def _tasks(taskset: TasksetConfig, field: str, sources: Mapping[str, Source]) -> list[str]:
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    faults = []
    for path in paths:
        local = existing_path(path)
        package = path.partition("://")[0]
        if package in GENERATORS and find_spec(package) is None:
            extra = package.replace("_", "-")
            faults.append(f"{_at(field, sources)}: {package} is not installed: pip install 'strop[{extra}]'")
        if "://" in path or not (is_local(path) or Path(path).suffix in _DATA_SUFFIXES):
            continue
        if local is None:
            faults.append(f"{_at(field, sources)}: there is no file {path}.")
        elif local.is_file() and local.stat().st_size == 0:
            faults.append(f"{_at(field, sources)}: {path} is empty.")
        elif local.is_dir() and not any(local.iterdir()):
            faults.append(f"{_at(field, sources)}: the folder {path} is empty.")
    if taskset.few_shot is not None:
        examples = TasksetConfig(path=taskset.few_shot.path)
        faults += _tasks(examples, field.removesuffix("path") + "few_shot.path", sources)
    return faults
