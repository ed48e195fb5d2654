"""Checks of a run before anything heavy is loaded: files, folders and environment variables that are
missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from strop.config.checks.engine import fixed_weights_fault
from strop.config.data_files import data_file_name
from strop.config.effective_reward import configured_rewards, lacks_reward
from strop.config.load.config_tree import Source
from strop.config.load.library_arguments import argument_names
from strop.config.load.loader import LoadedRun
from strop.config.model_files import labels_fault, model_file_faults
from strop.config.paths import existing_path, gguf_file, is_local
from strop.config.peft_adapter import adapter_in_model_folder, adapter_options
from strop.config.plan.machine import described_machine
from strop.config.schema import Run
from strop.config.schema.data import GENERATORS, TasksetConfig, is_template
from strop.config.schema.inference_engine import (
    InferenceEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
)
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.record import TRACKING_SERVICES
from strop.config.schema.reward import RewardConfig
from strop.config.schema.rollout import WorkflowConfig
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError, ModelError
from strop.python_rewards import PythonRewards, list_rewards

NO_REWARD = (
    "reward: missing, so nothing scores the responses. Write a built-in (`reward: gsm8k`), your own function "
    "(`reward: file.py:name`), or pass a function to `strop.train` from Python."
)
_LIBRARIES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Name of the library of each type of engine that needs one."""
_OPTIMIZER_PACKAGES = {
    "adamw_bnb": ("bitsandbytes", "bitsandbytes"),
    **dict.fromkeys(("ademamix", "galore_adamw", "schedule_free_sgd"), ("pytorch_optimizer", "optimizers")),
}
"""Optimizers that are classes of a package, with the package and the extra that installs it."""
_WORKFLOW_FILES = ("tool_config", "function_file", "interaction_config", "agent_loops")
"""Arguments of the workflows `tools` and `verl_agents` that name a file."""
_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def missing_files(loaded: LoadedRun, written_before: Collection[Path] = ()) -> list[str]:
    """Return one sentence per local file or folder of the run that is missing, empty or damaged.

    Names on the Hub and URLs are not checked, nor the folders `written_before`, into which earlier stages of the file
    write their models.
    """
    run, sources = loaded.run, loaded.sources
    model_faults = partial(_model_faults, written_before=written_before)
    faults = [
        *model_faults(run.model.path, "model.path", sources, tokenizer=run.model.tokenizer),
        *_adapter(run.model.lora),
        *(
            fault
            for where, taskset in (run.data.training_tasksets() if run.data.queue is None else {}).items()
            for fault in _tasks(taskset, f"{where}.path", sources)
        ),
        *(
            fault
            for index, taskset in enumerate(run.data.eval)
            for fault in _tasks(taskset, f"data.eval.{index}.path", sources)
        ),
    ]
    if (second := second_model(run)) is not None:
        field, model = second
        faults += model_faults(model.path, f"{field}.model.path", sources, tokenizer=model.tokenizer)
    for number, teacher in enumerate(run.algorithm.teachers):
        key = f"algorithm.distillation.teachers.{number}.path"
        faults += model_faults(teacher.path, key, sources, tokenizer=teacher.tokenizer)
    faults += _code(run, sources)
    for where, reward in configured_rewards(run).items():
        faults += _reward(reward, where, sources, model_faults)
    for index, answers in enumerate(run.data.demonstrations):
        faults += _tasks(answers, f"data.demonstrations.{index}.path", sources)
    if lacks_reward(run) and not loaded.rewards and not run.algorithm.is_offline:
        faults.append(NO_REWARD)
    for index, auxiliary in enumerate(run.rollout.auxiliary_models):
        faults += model_faults(auxiliary.path, f"rollout.auxiliary_models.{index}.path", sources)
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
    faults += _missing_packages(run, sources)
    if (fault := fixed_weights_fault(run)) is not None:
        faults.append(f"{_at('rollout.engine.type', sources)}: {fault}.")
    faults += _server_key(run.rollout.engine, sources)
    faults += _unknown_arguments(run.rollout.engine, sources)
    parent = next(folder for folder in (run.folder_path, *run.folder_path.parents) if existing_path(folder))
    if not (is_folder := parent.is_dir()) or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is not writable" if is_folder else "is no folder"
        faults.append(
            f"{_at('output', sources)}: {run.folder_path} cannot be created, because {parent} {reason}."
        )
    return faults


def second_model(run: Run) -> tuple[str, ModelConfig] | None:
    """The section with a model of its own that is trained next to the policy, and that model."""
    own = {name: section.model for name, section in run.algorithm.trained_models.items()}
    return next(((f"algorithm.{name}", model) for name, model in own.items() if model is not None), None)


def _adapter(lora: LoraConfig | None) -> list[str]:
    """The fault of a local adapter that the run starts with."""
    if lora is None or lora.adapter is None or not is_local(lora.adapter):
        return []
    try:
        adapter_options(lora)
    except ModelError as error:
        return [str(error)]
    return []


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


def _missing_packages(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Return an error for each package that a value needs and this machine lacks; another machine is not known."""
    engine, optimizer = run.trainer.engine.type, run.trainer.optimizer.type
    needed = [
        ("trainer.engine.type", engine, {"deepspeed": ("deepspeed", "deepspeed")}),
        ("trainer.optimizer.type", optimizer, _OPTIMIZER_PACKAGES),
        ("cluster.type", run.cluster.type, {"ray": ("ray", "ray")}),
        ("rollout.engine.type", run.rollout.engine.type, {"openai": ("aiohttp", "agents")}),
    ]
    found = [(field, value, packages[value]) for field, value, packages in needed if value in packages]
    return [
        f"{_at(field, sources)}: {value} needs the package {package}, which is not installed: pip install "
        f"'strop[{extra}]'"
        for field, value, (package, extra) in found
        if described_machine() is None and find_spec(package) is None
    ]


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


def require_files(loaded: LoadedRun, rewards: PythonRewards | None) -> None:
    """Raise `ConfigError` for `missing_files`; `rewards` are the functions from Python."""
    if faults := missing_files(replace(loaded, rewards=list_rewards(rewards))):
        raise ConfigError(*faults)


def require_reward(run: Run, reward: PythonRewards | None) -> None:
    """Raise `ConfigError` if neither the run file nor Python has a reward."""
    if reward is None and lacks_reward(run):
        raise ConfigError(NO_REWARD)


def _workflow(workflow: WorkflowConfig, field: str, sources: Mapping[str, Source]) -> list[str]:
    if workflow.name == "verifiers" and find_spec("verifiers") is None:
        return [f"{_at(field, sources)}: verifiers is not installed: pip install 'strop[verifiers]'"]
    files = [(field, workflow.name.rpartition(":")[0])] if ".py:" in workflow.name else []
    if (tools := workflow.tool_args) is not None:
        args = field.removesuffix("name") + "args"
        named = {**workflow.args, **(tools if isinstance(tools, dict) else {})}
        files += [(args, str(named[name])) for name in _WORKFLOW_FILES if named.get(name)]
    return [f"{_at(at, sources)}: there is no file {file}." for at, file in files if not _is_file(file)]


def _code(run: Run, sources: Mapping[str, Source]) -> list[str]:
    """Return the missing Python files of `model.imports` and custom datasets."""
    files = {"model.imports": [name for name in run.model.imports if name.endswith(".py")]}
    for option, name in run.algorithm.user_functions.items():
        if ".py:" in name:
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


def _reward(
    reward: RewardConfig, where: str, sources: Mapping[str, Source], model_faults: Callable[..., list[str]]
) -> list[str]:
    files: dict[str, str] = {}
    faults: list[str] = []
    for index, part in enumerate(reward.functions):
        file, colon, _ = part.function.rpartition(":")
        if colon and file.endswith(".py"):
            files[f"{where}.functions.{index}.function"] = file
    for index, model in enumerate(reward.models):
        key = f"{where}.models.{index}.path"
        found = model_faults(model.path, key, sources, tokenizer=model.tokenizer)
        if not found and (folder := existing_path(model.path)) is not None and folder.is_dir():
            found = [
                f"{_at(key, sources)}: {fault}" for fault in filter(None, [labels_fault(folder, model.path)])
            ]
        faults += found
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


def _model_faults(
    path: str,
    field: str,
    sources: Mapping[str, Source],
    *,
    written_before: Collection[Path],
    tokenizer: str | None = None,
) -> list[str]:
    """Return the faults of a local model folder; `tokenizer` is that of another folder."""
    if not is_local(path) or Path(path).expanduser() in written_before or sources[field].kind == "stage":
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
    if (fault := adapter_in_model_folder(folder)) is not None:
        return [f"{_at(field, sources)}: {fault}"]
    needed = {"no config.json": ("config.json",), "no weights (*.safetensors)": _WEIGHTS}
    needed |= {"no tokenizer": _TOKENIZERS} if tokenizer is None else {}
    missing = [what for what, names in needed.items() if not any(next(folder.glob(n), None) for n in names)]
    if missing:
        return [f"{_at(field, sources)}: the model folder {path} has {', '.join(missing)}."]
    return [f"{_at(field, sources)}: {fault}" for fault in model_file_faults(folder, path)]


def hub_names(models: Mapping[str, str]) -> dict[str, str]:
    """Models, by their keys, that are no folders here, and so may be names of the hub."""
    return {key: path for key, path in models.items() if not is_local(path)}


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
        if "://" in path or not (is_local(path) or data_file_name(path)):
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
