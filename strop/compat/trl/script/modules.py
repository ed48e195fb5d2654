"""Stand-ins for the modules `trl` and `unsloth` while a script runs."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from strop.compat.trl import rewards
from strop.compat.trl.script.configurations import (
    CONFIGURATIONS,
    DatasetConfig,
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    get_dataset,
    get_kbit_device_map,
    get_peft_config,
    get_quantization_config,
    make_trl_parser,
)
from strop.compat.trl.script.models import FastLanguageModel, is_bfloat16_supported, patch_fast_rl
from strop.compat.trl.script.recording import CHANGES, ChangingLoader, change_imported, restore_changed
from strop.compat.trl.script.session import PACKAGES, RefusedName, current_session
from strop.compat.trl.script.trainers import TRAINERS
from strop.printable import did_you_mean

_OWN_TRAINERS = "Strop has GRPO, RLOO, SFT, DPO, KTO, CPO, ORPO and reward models of TRL"
_REFUSED: Mapping[str, str] = {
    "GKDConfig": "TRL compares the models at temperature 1 on completions sampled at another one (0.9 by default), "
    "draws for each batch whether it is sampled, and takes each prompt from the conversation of its demonstration. "
    "Write a run file with algorithm: {type: distillation, demonstration_fraction: 0.5, distillation: {teachers: "
    "[{path: teacher}], loss: {divergence: {type: jsd, beta: 0.5}}}}, which samples and compares at one temperature; "
    "demonstration_fraction is 1 - lmbda (`strop help algorithms/distillation`)",
    "DistillationConfig": "write a run file with algorithm: {type: distillation, distillation: {teachers: [{path: "
    "teacher}]}} (`strop help algorithms/distillation`)",
    "BCOConfig": "TRL 1.16 has no BCO; write a run file with algorithm: bco (`strop help algorithms/offline`)",
    "PRMConfig": "TRL 1.16 has no process reward models; write a run file with algorithm: {type: reward_model, loss: "
    "cross_entropy} and data.train: {steps: completions, label: labels} (`strop help algorithms/offline`)",
    "PPOConfig": "write a run file with algorithm: ppo",
    "apply_chat_template": "Strop applies the chat template itself; pass the messages",
    "maybe_apply_chat_template": "Strop applies the chat template itself; pass the messages",
    "clone_chat_template": "clone the template in a script of its own, save model and tokenizer, and name the folder",
    "setup_chat_format": "change model and tokenizer in a script of its own, save them, and name the folder",
    "pack_dataset": "Strop packs sequences itself; pass the rows as they are",
    "create_reference_model": "the reference is the initial model; leave ref_model out",
    "get_chat_template": "write the template to data.chat_template of a run file, or use that of the model",
    "train_on_responses_only": "write messages with assistant_only_loss=True, or the columns prompt and completion",
    "standardize_sharegpt": "make rows with role and content by dataset.map",
}
"""Names of TRL and unsloth, with what to write instead; a trainer has the reason of its configuration."""


def _trl_names() -> dict[str, Any]:
    return {
        **{config.__name__: config for config in CONFIGURATIONS.values()},
        **TRAINERS,
        "ModelConfig": ModelConfig,
        "ScriptArguments": ScriptArguments,
        "DatasetMixtureConfig": DatasetMixtureConfig,
        "DatasetConfig": DatasetConfig,
        "get_dataset": get_dataset,
        "get_peft_config": get_peft_config,
        "get_quantization_config": get_quantization_config,
        "get_kbit_device_map": get_kbit_device_map,
        "init_zero_verbose": lambda: None,
        "__version__": "1.16.0",
    }


def _unsloth_names() -> dict[str, Any]:
    fast = FastLanguageModel
    return {
        **dict.fromkeys(("FastLanguageModel", "FastModel", "FastVisionModel"), fast),
        "PatchFastRL": patch_fast_rl,
        "is_bfloat16_supported": is_bfloat16_supported,
        "is_bf16_supported": is_bfloat16_supported,
        "__version__": "2026.11",
    }


class _StandIn(ModuleType):
    """A module with stand-ins, which refuses other names."""

    def __init__(self, name: str, names: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__.update(names)
        self._names = tuple(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "TrlParser" and self.__name__.partition(".")[0] == "trl":
            return make_trl_parser()
        if f"{self.__name__}.{name}" in sys.modules:
            return sys.modules[f"{self.__name__}.{name}"]
        config = f"{name.removesuffix('Trainer')}Config"
        why = _REFUSED.get(name) or _REFUSED.get(config) if name.endswith("Trainer") else _REFUSED.get(name)
        if why is None:
            known = did_you_mean(name, self._names)
            why = known[2:].rstrip("?. ") + "?" if known else f"{_OWN_TRAINERS}, and no {name}"
        raise RefusedName(
            f"{current_session().place()}: {self.__name__}.{name} is not supported: {why.rstrip('.')}."
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins, and changes functions of other packages when those are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in PACKAGES:
            return ModuleSpec(name, self, is_package=True)
        if name not in CHANGES:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = ChangingLoader(spec.loader)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == "trl.rewards" or spec.name.startswith("trl.rewards."):
            return _StandIn(spec.name, {name: getattr(rewards, name) for name in rewards.NAMES})
        return _StandIn(spec.name, _trl_names() if spec.name.startswith("trl") else _unsloth_names())

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the module has its names."""


@contextmanager
def installed() -> Iterator[None]:
    """Replace `trl` and `unsloth`, and change the functions that record, while a script runs."""
    hidden = _forget_packages()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        change_imported()
        yield
    finally:
        sys.meta_path.remove(finder)
        restore_changed()
        _forget_packages()
        sys.modules.update(hidden)


def _forget_packages() -> dict[str, ModuleType]:
    """Remove the modules of the replaced packages; returns them."""
    names = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
    return {name: sys.modules.pop(name) for name in names}
