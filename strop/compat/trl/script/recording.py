"""Recording versions of functions of `datasets`, `transformers` and `peft`, while a script runs."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from strop.compat.trl.script.datasets import DataSource
from strop.compat.trl.script.models import RecordedModel
from strop.compat.trl.script.session import ScriptSession, current_session

_FILE_TYPES = {"json": (".json", ".jsonl"), "parquet": (".parquet",)}
"""Types of files that Strop reads as `load_dataset` does, with their suffixes."""
_READ_FROM_FILES = frozenset({"image", "images", "tools", "chat_template_kwargs", "margin"})
"""Columns that Strop finds in files only, so that the rows of a data set on the Hub with one are written to a file."""
_SAME_ROWS = ("split", "name", "data_files", "cache_dir", "token", "num_proc", "streaming")
"""Arguments of `load_dataset` with which a dataset is still a file, or a split of a Hub name."""


def recording_load_dataset(load: Callable[..., Any]) -> Callable[..., Any]:
    """`datasets.load_dataset`, which also records where the rows come from."""

    def load_dataset(path: Any, *arguments: Any, **options: Any) -> Any:
        loaded = load(path, *arguments, **options)
        if len(arguments) > 1 or isinstance(loaded, list):
            return loaded
        named = dict(zip(("name",), arguments, strict=False)) | options
        splits = loaded if isinstance(loaded, Mapping) else {named.get("split"): loaded}
        for split, dataset in splits.items():
            _record(current_session(), dataset, str(path), None if split is None else str(split), named)
        return loaded

    return load_dataset


def _record(
    session: ScriptSession, dataset: Any, path: str, split: str | None, named: Mapping[str, Any]
) -> None:
    whole = split is not None and split.replace("_", "").isalnum()
    if not whole or any(value is not None for name, value in named.items() if name not in _SAME_ROWS):
        return
    columns = tuple(dataset.column_names or ())
    streamed = bool(named.get("streaming"))
    if path in _FILE_TYPES:
        files = named.get("data_files")
        file = files.get(split) if isinstance(files, Mapping) else files if split == "train" else None
        if not isinstance(file, str | PurePath) or PurePath(file).suffix not in _FILE_TYPES[path]:
            return
        if not Path(file).is_file():  # a pattern or a URL
            return
        found = DataSource(str(file), columns=columns, is_streamed=streamed)
    elif named.get("data_files") is None and not _READ_FROM_FILES & {*columns}:
        found = DataSource(path, named.get("name"), split, columns, streamed)
    else:
        return
    session.origins[id(dataset)] = (dataset, getattr(dataset, "_fingerprint", None), found)


def recording_from_pretrained(cls: type, name: Any, *arguments: Any, **options: Any) -> RecordedModel:
    """`from_pretrained` of a class of causal language models."""
    if arguments:
        raise current_session().error(
            f"{cls.__name__}.from_pretrained has arguments without names after the first one; write their names."
        )
    return RecordedModel(str(name), options)


def recording_get_peft_model(get: Callable[..., Any]) -> Callable[..., Any]:
    """`peft.get_peft_model`, which records the adapter of a stand-in."""

    def get_peft_model(model: Any, peft_config: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(model, RecordedModel):
            return get(model, peft_config, *arguments, **options)
        if arguments or options:
            named = next(iter(options), "adapter_name")
            raise current_session().error(
                f"get_peft_model has {named}, which Strop does not read; leave it out."
            )
        model.adapter = peft_config
        return model

    return get_peft_model


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
