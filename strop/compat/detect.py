"""Detection of a file's dialect by its keys, and the reader for files of any dialect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from strop.compat.azureml.reader import read_component, read_job
from strop.compat.registry import LEDGERS, key_owner_hint, run_file_key_owner
from strop.compat.trinity.reader import read_trinity
from strop.compat.trl.reader import IDENTIFYING_KEYS, TrlProgram, read_trl_file
from strop.compat.trl.script.run import read_trl_script
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.aliases import KEY_ALIASES
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, iter_values
from strop.config.load.loader import Job, load_run
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import SCRIPT_SUFFIXES
from strop.config.schema.run import all_keys
from strop.errors import ConfigError
from strop.printable import did_you_mean

_TRL_PROGRAMS: Mapping[str, TrlProgram] = {
    "trl": "grpo",
    "trl-rloo": "rloo",
    "trl-sft": "sft",
    "trl-dpo": "dpo",
    "trl-kto": "kto",
    "trl-reward": "reward",
    "trl-cpo": "cpo",
    "trl-orpo": "orpo",
}
_TRINITY_SECTIONS = ("explorer", "checkpoint_root_dir")
"""Top-level keys of a Trinity file that a run file does not have."""

_OTHER_PROGRAMS = {
    "verl-eval": "this file is verl's evaluation.yaml, which scores a file of responses without training. Run it "
    "with: strop verl eval --config {path} (--explain describes what it does)",
    "verl-generate": "this file is verl's generation.yaml, which generates responses to prompts without training. "
    "Run it with: strop verl generate --config {path}",
    "verl-merge": "these keys are options of verl's model merger, which reads no file. Run: strop verl merge "
    "--local_dir FOLDER --target_dir FOLDER",
}
"""The errors for dialects of programs that do not train."""


def read_file(path: Path, overrides: Sequence[str], *, here: bool, dialect: str | None) -> Job:
    """Read a file of a dialect, or a script, for `strop.reading.read_any`; `dialect` None detects it."""
    if path.suffix in SCRIPT_SUFFIXES:
        return read_trl_script(path, overrides, here=here, key_owner=key_owner_hint)
    job_file = read_job(read_yaml(path), path)
    tree, here = job_file.tree, here or job_file.here
    dialect = dialect or detect_dialect(tree)
    if dialect not in ("strop", *LEDGERS):
        raise ConfigError(
            f"Unknown dialect {dialect!r}{did_you_mean(dialect, LEDGERS) or '.'} Known dialects: strop, "
            f"{', '.join(LEDGERS)}."
        )
    match dialect:
        case "verl":
            return Job(read_verl(overrides, config=path, here=here, key_owner=key_owner_hint))
        case "verl-sft" | "verl-sft-engine":
            return Job(read_verl_sft(overrides, config=path, here=here, key_owner=key_owner_hint))
        case "verl-eval" | "verl-generate" | "verl-merge":
            raise ConfigError(f"{path}: {_OTHER_PROGRAMS[dialect].format(path=path)}")
        case "trinity":
            return Job(read_trinity(path, overrides, here=here, key_owner=key_owner_hint))
        case _ if dialect in _TRL_PROGRAMS:
            program = _TRL_PROGRAMS[dialect]
            _refuse_overrides(
                path, overrides, f"TRL's file; write strop trl {program} --config FILE --key value"
            )
            return Job(read_trl_file(program, path, here=here, key_owner=key_owner_hint))
        case "strop":
            return Job(load_run(path, overrides, here=here, key_owner=run_file_key_owner))
    if overrides:
        raise ConfigError(
            f"{path}: these keys are inputs of the component {dialect}, which accepts no overrides; write "
            "the "
            f"values in the file, or run strop component {dialect} --input value."
        )
    arguments = list(_component_arguments(tree))
    places = {argument[2:].partition("=")[0]: source for argument, source in arguments}
    try:
        return read_component(
            dialect,
            [argument for argument, _ in arguments],
            here=here,
            places=places,
            key_owner=key_owner_hint,
        )
    except ConfigError as error:
        raise error.reworded(lambda message: _with_location(message, places, path)) from None


def _refuse_overrides(path: Path, overrides: Sequence[str], what: str) -> None:
    if overrides:
        raise ConfigError(f"{path}: overrides do not apply to {what}, and there is {overrides[0]!r}.")


def _with_location(message: str, places: Mapping[str, Source], path: Path) -> str:
    """The message, preceded by the place of the first input that it names."""
    named = (places[name] for name in re.findall(r"--([\w.-]+)", message) if name in places)
    return message if message.startswith(str(path)) else f"{next(named, path)}: {message}"


def detect_dialect(tree: ConfigTree) -> str:
    """`strop` for a run file, else the name of a ledger.

    A key that only one dialect has decides; otherwise the configuration that knows most of the keys.
    """
    values = tree.values
    if "actor_rollout_ref" in values:
        return "verl"
    if "engine" in values or tree.has(("data", "messages_key")):
        return "verl-sft-engine"
    if tree.has(("model", "partial_pretrain")):
        return "verl-sft"
    if any(tree.has(("data", key)) for key in ("n_samples", "output_path")):
        return "verl-generate"
    if tree.has(("data", "path")) and "model" not in values:
        return "verl-eval"
    if tree.has(("model", "model_path")) or any(key in values for key in _TRINITY_SECTIONS):
        return "trinity"
    for dialect, keys in IDENTIFYING_KEYS.items():
        if any(key in values for key in keys):
            return dialect
    inputs = values.get("inputs")
    written = [
        ".".join(keys) for keys, _ in iter_values(inputs if isinstance(inputs, dict) else values) if keys
    ]
    known = {"strop": len(set(written) & {*all_keys(), *KEY_ALIASES})}
    known |= {
        name: sum(ledger.find_exact(key) is not None for key in written) for name, ledger in LEDGERS.items()
    }
    return max(known, key=lambda name: known[name])


def _component_arguments(tree: ConfigTree) -> Iterator[tuple[str, Source]]:
    """`--name=value` and its place, for each key of a flat mapping or of a job's `inputs` and `outputs`."""
    values = tree.values
    sections: list[KeyPath] = [
        (name,) for name in ("inputs", "outputs") if isinstance(values.get(name), dict)
    ]
    for section in sections or [()]:
        for name, value in tree.get(section).items():
            inside = value.get("path") if isinstance(value, dict) else value
            text = str(inside).lower() if isinstance(inside, bool) else inside
            yield f"--{name}={'' if text is None else text}", tree.sources[(*section, name)]
