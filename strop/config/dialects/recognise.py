"""Whose configuration a file is, by the keys in it; and its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.config.dialects.component import COMPONENTS, Job, read_component
from strop.config.dialects.trinity import read_trinity
from strop.config.dialects.verl import read_verl
from strop.config.dialects.verl.sft import read_verl_sft
from strop.config.draft import Draft
from strop.config.load import load_run
from strop.config.yaml_file import read_yaml
from strop.errors import ConfigError

_TRINITY = ("cluster", "explorer", "synchronizer", "stages", "checkpoint_root_dir")


def read_file(path: Path, overrides: Sequence[str] = (), *, here: bool = False) -> Job:
    """A run file, or one of the other tools', whichever it is. Raises ConfigError as their readers do."""
    draft = read_yaml(path)
    dialect = dialect_of(draft)
    match dialect:
        case "verl":
            return Job(read_verl(overrides, config=path, here=here))
        case "verl-sft":
            return Job(read_verl_sft(overrides, config=path, here=here))
        case "verl-eval":
            raise ConfigError(
                f"{path}: this is verl's evaluation.yaml, which scores a file of answers and trains nothing. "
                f"Run it with: strop verl eval --config {path}"
            )
        case "trinity":
            return Job(read_trinity(path, overrides, here=here))
        case "strop":
            return Job(load_run(path, overrides, here=here))
    if overrides:
        raise ConfigError(
            f"{path}: these are inputs of the component {dialect}, which takes no overrides; write them in "
            f"the file, or as strop component {dialect} --input value."
        )
    return read_component(dialect, list(_words(draft.values)), here=here)


def dialect_of(draft: Draft) -> str:
    """`strop`, `verl`, `verl-sft`, `verl-eval`, `trinity`, or the component whose inputs stand there."""
    values = draft.values
    if "actor_rollout_ref" in values:
        return "verl"
    if draft.has(("model", "partial_pretrain")):
        return "verl-sft"
    if draft.has(("data", "path")) and "model" not in values:
        return "verl-eval"
    if draft.has(("model", "model_path")) or any(key in values for key in _TRINITY):
        return "trinity"
    inside = values.get("inputs")
    written = set(inside if isinstance(inside, dict) else values)
    known = {name: len(written & {i.name for i in part.inputs}) for name, part in COMPONENTS.items()}
    most = max(known, key=lambda name: known[name])
    return most if known[most] else "strop"


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    """`--name=value`, from a flat mapping, or from a job's `inputs` and `outputs`."""
    sections = [values[name] for name in ("inputs", "outputs") if isinstance(values.get(name), dict)]
    for section in sections or [values]:
        for name, value in section.items():
            inside = value.get("path") if isinstance(value, dict) else value
            text = str(inside).lower() if isinstance(inside, bool) else inside
            yield f"--{name}={'' if text is None else text}"
