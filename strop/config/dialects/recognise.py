"""Whose configuration a file is, by the keys in it; and its run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from strop.config.dialects import LEDGERS
from strop.config.dialects.component import Job, read_component
from strop.config.dialects.trinity import read_trinity
from strop.config.dialects.verl import read_verl
from strop.config.dialects.verl.sft import read_verl_sft
from strop.config.draft import Draft, Keys, Source, walk
from strop.config.load import load_run
from strop.config.schema.walk import all_keys
from strop.config.yaml_file import read_yaml
from strop.errors import ConfigError

_TRINITY = ("explorer", "checkpoint_root_dir")
"""Sections that a run file does not have."""


def read_file(path: Path, overrides: Sequence[str] = (), *, here: bool = False) -> Job:
    """A run file, or one of the other tools', whichever it is. Raises ConfigError as their readers do."""
    draft = read_yaml(path)
    if isinstance(draft.values.get("jobs"), dict):
        raise ConfigError(
            f"{draft.said[('jobs',)]}: this is a pipeline of AzureML's, which `az ml job create` runs in a "
            "workspace. Here, give the inputs of one of its jobs, as a file of `input: value` lines or as "
            "strop component NAME --input value."
        )
    dialect = dialect_of(draft)
    match dialect:
        case "verl":
            return Job(read_verl(overrides, config=path, here=here))
        case "verl-sft":
            return Job(read_verl_sft(overrides, config=path, here=here))
        case "verl-eval":
            raise ConfigError(
                f"{path}: this is verl's evaluation.yaml, which scores a file of answers and trains nothing. "
                f"Run it with: strop verl eval --config {path} (and --explain for what it would do)"
            )
        case "verl-generate":
            raise ConfigError(
                f"{path}: this is verl's generation.yaml, which answers prompts and trains nothing. "
                f"Run it with: strop verl generate --config {path}"
            )
        case "verl-merge":
            raise ConfigError(
                f"{path}: these are options of verl's model merger, which takes no file: strop verl merge "
                "--local_dir FOLDER --target_dir FOLDER"
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
    places = {word[2:].partition("=")[0]: source for word, source in _words(draft)}
    try:
        return read_component(dialect, [word for word, _ in _words(draft)], here=here, places=places)
    except ConfigError as error:
        raise type(error)("\n".join(_placed(str(error), places, path))) from None


def _placed(message: str, places: Mapping[str, Source], path: Path) -> Iterator[str]:
    """Each line of it with the place of the first input that it names."""
    for line in message.splitlines():
        named = (places[name] for name in re.findall(r"--([\w.-]+)", line) if name in places)
        known = line.startswith(str(path))
        yield line if known else f"{next(named, path)}: {line}"


def dialect_of(draft: Draft) -> str:
    """`strop`, or the name of the ledger: by what only one of them has, else by how many keys each knows."""
    values = draft.values
    if "actor_rollout_ref" in values:
        return "verl"
    if draft.has(("model", "partial_pretrain")):
        return "verl-sft"
    if any(draft.has(("data", key)) for key in ("n_samples", "output_path")):
        return "verl-generate"
    if draft.has(("data", "path")) and "model" not in values:
        return "verl-eval"
    if draft.has(("model", "model_path")) or any(key in values for key in _TRINITY):
        return "trinity"
    inside = values.get("inputs")
    written = [".".join(keys) for keys, _ in walk(inside if isinstance(inside, dict) else values) if keys]
    known = {"strop": len(set(written) & set(all_keys()))}
    known |= {
        name: sum(ledger.find_own(key) is not None for key in written) for name, ledger in LEDGERS.items()
    }
    return max(known, key=lambda name: known[name])


def _words(draft: Draft) -> Iterator[tuple[str, Source]]:
    """`--name=value`, from a flat mapping, or from a job's `inputs` and `outputs`; each with its place."""
    values = draft.values
    sections: list[Keys] = [(name,) for name in ("inputs", "outputs") if isinstance(values.get(name), dict)]
    for section in sections or [()]:
        for name, value in draft.get(section).items():
            inside = value.get("path") if isinstance(value, dict) else value
            text = str(inside).lower() if isinstance(inside, bool) else inside
            yield f"--{name}={'' if text is None else text}", draft.said[(*section, name)]
