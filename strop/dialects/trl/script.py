"""Reader of Python scripts with TRL's configurations: keyword arguments that are literals, without executing the
script."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import ConfigTree, Source
from strop.config.load.loader import LoadedRun
from strop.config.load.yaml_file import read_bounded
from strop.dialects.ledger.table import KeyOwnerHint, no_key_owner
from strop.dialects.trl.reader import TrlProgram, read_trl_tree
from strop.errors import ConfigError

_PROGRAMS: Mapping[str, TrlProgram] = {"GRPO": "grpo", "RLOO": "rloo", "SFT": "sft", "DPO": "dpo"}
_CONFIGS = {f"{name}Config": program for name, program in _PROGRAMS.items()}
_TRAINERS = {f"{name}Trainer": program for name, program in _PROGRAMS.items()}
_NOT_READ = {
    "GKDConfig": "TRL compares the models at temperature 1 on completions sampled at another one (0.9 by default), "
    "draws for each batch whether it is sampled, and takes each prompt from the conversation of its demonstration. "
    "Write a run file with algorithm: {type: distillation, demonstration_fraction: 0.5, distillation: {teachers: "
    "[{path: teacher}], loss: {divergence: {type: jsd, beta: 0.5}}}}, which samples and compares at one temperature; "
    "demonstration_fraction is 1 - lmbda (docs/algorithms/distillation.md)",
    "KTOConfig": "Strop has no KTO; write a DPOConfig with pairs",
    "RewardConfig": "Strop trains no reward models; train it with TRL, and write its folder under reward.models",
}
"""Configurations of TRL that are not read, with the reason and what to write instead."""
_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "task_type": "lora_task_type",
}
"""Keyword arguments of PEFT's LoraConfig, with TRL's options for them."""
_LORA_DEFAULTS = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""PEFT's defaults, which differ from those of TRL's options."""


def is_trl_script(path: Path) -> bool:
    """Whether a Python file calls one of TRL's configurations. Raises ConfigError for one that is not
    Python."""
    return any(_called(node) in (*_CONFIGS, *_NOT_READ) for node in ast.walk(_parse(path)))


def read_trl_script(path: Path, *, here: bool = False, key_owner: KeyOwnerHint = no_key_owner) -> LoadedRun:
    """Read the literal keyword arguments of a script's configuration and trainer; a notice names the others.

    Raises ConfigError where the script has not exactly one configuration, and ConfigError and PlacementError
    for what it says.
    """
    script = _Script(path, _parse(path))
    program = script.read()
    loaded = read_trl_tree(program, script.tree, here=here, key_owner=key_owner)
    return replace(loaded, notes=(*script.not_read, *loaded.notes))


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(read_bounded(path), str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not a Python script: {error}.") from None


def _called(node: ast.AST) -> str:
    """Last name of the function that a node calls; empty for another node."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@dataclass(slots=True)
class _Script:
    path: Path
    module: ast.Module
    tree: ConfigTree = field(default_factory=ConfigTree)
    not_read: list[str] = field(default_factory=list)
    """Notices about arguments that are not literals."""

    def read(self) -> TrlProgram:
        """Set the script's values; returns the program."""
        calls = [node for node in ast.walk(self.module) if isinstance(node, ast.Call)]
        configs = [call for call in calls if _called(call) in _CONFIGS]
        for call in calls:
            if (name := _called(call)) in _NOT_READ and not configs:
                raise ConfigError(f"{self._source(call)}: {name} is not read: {_NOT_READ[name]}.")
        if len(configs) != 1:
            lines = ", ".join(str(call.lineno) for call in configs) or "none"
            raise ConfigError(
                f"{self.path}: a script with one of {', '.join(_CONFIGS)} can be read, and this one has "
                f"{len(configs)} (lines: {lines}); write one run per script."
            )
        for keyword in configs[0].keywords:
            self._set(keyword.arg or "**", keyword.value)
        program = _CONFIGS[_called(configs[0])]
        for call in calls:
            if _TRAINERS.get(_called(call)) == program:
                self._read_trainer(call)
        return program

    def _read_trainer(self, call: ast.Call) -> None:
        for keyword in call.keywords:
            value = self._assigned(keyword.value)
            match keyword.arg:
                case "model":
                    self._set("model_name_or_path", _path_of_pretrained(value))
                case "train_dataset" | "eval_dataset" if _called(value) == "load_dataset":
                    assert isinstance(value, ast.Call)
                    self._read_dataset(value, keyword.arg == "train_dataset")
                case "reward_funcs":
                    self._read_rewards(value)
                case "peft_config" if _called(value) == "LoraConfig":
                    assert isinstance(value, ast.Call)
                    self._read_lora(value)
                case "args":
                    pass
                case other:
                    self._note(other or "**", keyword.value)

    def _read_dataset(self, call: ast.Call, train: bool) -> None:
        """`load_dataset(name, split=...)`, or `load_dataset("json", data_files=..., split=...)`."""
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        if train:
            self._set("dataset_name", named.get("data_files") or (call.args[0] if call.args else call))
            if "data_files" not in named and len(call.args) > 1:
                self._set("dataset_config", call.args[1])
        if "split" in named and "data_files" not in named:
            self._set("dataset_train_split" if train else "dataset_test_split", named["split"])

    def _read_lora(self, call: ast.Call) -> None:
        where = self._source(call)
        for key, value in ({"use_peft": True} | _LORA_DEFAULTS).items():
            self.tree.set((key,), value, where)
        for keyword in call.keywords:
            if keyword.arg in _LORA:
                self._set(_LORA[keyword.arg], keyword.value)
            elif keyword.arg != "bias" or ast.unparse(keyword.value) != "'none'":
                self._note(f"LoraConfig.{keyword.arg}", keyword.value)

    def _read_rewards(self, value: ast.expr) -> None:
        """Functions that the script imports, by their dotted paths; its own ones are not read, because loading
        them would execute the script."""
        imported = dict(self._imports())
        parts = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        names = [part.id if isinstance(part, ast.Name) else None for part in parts]
        if all(name in imported for name in names):
            functions = [imported[name] for name in names if name is not None]
            self.tree.set(("reward_funcs",), functions, self._source(value))
            return
        self.not_read.append(
            f"{self._source(value)}: reward_funcs={ast.unparse(value)} is not read; move functions of the script "
            "to a file rewards.py, and write `reward: rewards.py:name` in the run file."
        )

    def _imports(self) -> Iterator[tuple[str, str]]:
        """Names that the script imports, with what they name: a file next to the script, or a dotted path."""
        for node in ast.walk(self.module):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                file = self.path.parent.joinpath(*node.module.split(".")).with_suffix(".py")
                origin = f"{file}:" if file.is_file() else f"{node.module}."
                for alias in node.names:
                    yield alias.asname or alias.name, f"{origin}{alias.name}"

    def _assigned(self, value: ast.expr) -> ast.expr:
        """The value of a variable that is assigned exactly once; another expression itself."""
        if not isinstance(value, ast.Name):
            return value
        found = [
            node.value
            for node in ast.walk(self.module)
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == value.id for target in node.targets)
        ]
        return found[0] if len(found) == 1 else value

    def _set(self, key: str, value: ast.expr) -> None:
        try:
            literal = ast.literal_eval(self._assigned(value))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            self._note(key, value)
            return
        self.tree.set((key,), _plain(literal), self._source(value))

    def _note(self, key: str, value: ast.expr) -> None:
        text = ast.unparse(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        self.not_read.append(
            f"{self._source(value)}: {key}={shown} is not read, because it is not a literal."
        )

    def _source(self, node: ast.expr) -> Source:
        return Source("file", f"{self.path}:{node.lineno}")


def _path_of_pretrained(value: ast.expr) -> ast.expr:
    """The first argument of `from_pretrained(...)`; another expression itself."""
    if isinstance(value, ast.Call) and _called(value) == "from_pretrained" and value.args:
        return value.args[0]
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set) else value
