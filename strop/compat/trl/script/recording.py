"""Recording versions of functions of `datasets`, `transformers` and `peft`, while a script runs."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from strop.compat.trl.script.datasets import recording_load_dataset
from strop.compat.trl.script.models import recording_from_pretrained, recording_get_peft_model
from strop.compat.trl.script.session import current_session

_MODEL_CLASSES = ("ForCausalLM", "ForConditionalGeneration", "ForImageTextToText")
"""Ends of the names of classes whose `from_pretrained` records; the others load their weights, for rewards."""


class ChangingLoader(importlib.abc.Loader):
    """Loader of a module that changes some of its functions afterwards."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if current_session().is_recording:
            _change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_undo: list[Callable[[], None]] = []
"""Restores what was changed, newest last."""


def _set(owner: Any, name: str, value: Any) -> None:
    own = vars(owner).get(name)
    _undo.append(lambda: delattr(owner, name) if own is None else setattr(owner, name, own))
    setattr(owner, name, value)


def _change_load_dataset(module: ModuleType) -> None:
    _set(module, "load_dataset", recording_load_dataset(module.load_dataset))


def _change_get_peft_model(module: ModuleType) -> None:
    _set(module, "get_peft_model", recording_get_peft_model(module.get_peft_model))


def _change_auto(module: ModuleType) -> None:
    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForVision2Seq"):
        if hasattr(module, name):
            _set(getattr(module, name), "from_pretrained", classmethod(recording_from_pretrained))


def _change_models(module: ModuleType) -> None:
    load = module.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: type, name: Any, *others: Any, **options: Any) -> Any:
        if cls.__name__.endswith(_MODEL_CLASSES):
            return recording_from_pretrained(cls, name, *others, **options)
        return load(cls, name, *others, **options)

    _set(module.PreTrainedModel, "from_pretrained", classmethod(from_pretrained))


CHANGES: Mapping[str, Callable[[ModuleType], None]] = {
    "datasets.load": _change_load_dataset,
    "datasets": _change_load_dataset,
    "transformers.models.auto.modeling_auto": _change_auto,
    "transformers.modeling_utils": _change_models,
    "peft.mapping_func": _change_get_peft_model,
    "peft": _change_get_peft_model,
}
"""Modules with functions that record, each with its change."""


def _change(module: ModuleType) -> None:
    if not getattr(module, "_strop_records", False):
        _set(module, "_strop_records", True)
        CHANGES[module.__name__](module)


@contextmanager
def own_functions() -> Iterator[None]:
    """The functions that record as they were, for Strop's own calls, while a script waits for them."""
    restore_changed()
    try:
        yield
    finally:
        change_imported()


def change_imported() -> None:
    for name in CHANGES:
        if name in sys.modules:
            _change(sys.modules[name])


def restore_changed() -> None:
    while _undo:
        _undo.pop()()
