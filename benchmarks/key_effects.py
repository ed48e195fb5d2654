"""Effects of the keys of the five pages: each is set to other values, and has an effect, a notice or a refusal.

    .venv/bin/python -m benchmarks.key_effects
    .venv/bin/python -m benchmarks.key_effects --dialect trinity --key sample_strategy   # keys with this text

Each key of a page is set in turn to values that its type accepts, in a configuration of the tool. The resolved run, its
notices and the placement that `--here` overrides are compared with those of the configuration without it. A key is
silent if they are the same; the command then exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from strop.compat.azureml.component import to_argument
from strop.compat.azureml.reader import COMPONENTS, read_component
from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.registry import LEDGERS
from strop.compat.trinity.reader import read_trinity
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.loader import Job
from strop.errors import ConfigError
from tests.compat.trinity_file import BASE

DIALECTS = ("verl", "verl-sft", "trinity", *COMPONENTS)
Effect = Literal["effect", "notice", "placement", "refused", "silent"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
Values = dict[str, Any]

_VERL_FILES = {"data.train_files": "t.parquet", "data.val_files": "v.parquet"}
_FILES = {"data_train_files": "t.jsonl", "data_val_files": "v.jsonl", "actor_model_path": "m"}
BASES: dict[str, Values] = {
    "verl": {
        "actor_rollout_ref.model.path": "m",
        **_VERL_FILES,
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 4,
    },
    "verl-sft": {"model.partial_pretrain": "m"},
    "trinity": {"checkpoint_root_dir": "elsewhere"},
    "rft_trainer": {**_FILES, "algorithm_adv_estimator": "grpo", "data_truncation": "error"},
    "verl_trainer": _FILES,
    "grpo": {
        "model_name_or_path": "m",
        "dataset_train_split": "t.jsonl",
        "dataset_validation_split": "v.jsonl",
        "deepspeed_config": "ds.json",
        "dataset_prompt_column": "problem",
    },
}
"""Values of the configuration in which the keys are set; Trinity's are overrides of its file. An input of a component
has its default, as AzureML passes it."""

_TRIED: dict[str, tuple[Any, ...]] = {
    "data.trust_remote_code": (True,),
    "pypi_packages_override": ("einops==0.8.0",),
}
"""Values of keys for which those of their types do not do. verl's page has true for trust_remote_code; the code of a
model runs only where a file says so."""
_SAME: dict[str, tuple[Any, ...]] = {
    "actor_rollout_ref.rollout.dtype": ("bf16",),
    "model.fsdp_config.model_dtype": ("float32",),
    "algorithm.algorithm_type": ("grpo_verl",),
    "algorithm.sample_strategy": ("default",),
    "algorithm.advantage_fn": ("grpo",),
    "algorithm.kl_penalty_fn": ("none",),
    "algorithm.kl_loss_fn": ("k2",),
    "buffer.train_batch_size": (0, 32),
    "buffer.explorer_input.taskset.storage_type": ("file",),
    "buffer.explorer_input.taskset.format.prompt_type": ("plaintext",),
    "buffer.explorer_input.taskset.rollout_args.temperature": (1,),
    "buffer.explorer_input.eval_tasksets.0.storage_type": ("file",),
    "buffer.explorer_input.eval_tasksets.0.format.prompt_type": ("plaintext",),
    "buffer.explorer_input.eval_tasksets.0.repeat_times": (1,),
    "buffer.trainer_input.experience_buffer.storage_type": ("queue",),
}
"""Values that mean what the key's default means."""
_POOL: tuple[Any, ...] = (True, False, 0, 1, 2, 4, 32, 64, 0.5, 0.05, "x", ["x", "y"])
_MAX_VALUES = 4
"""Maximum number of values of one key."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A key with another value, and what it did."""

    key: str
    value: Any
    effect: Effect


def main() -> None:
    """Print the table, and the silent keys; exit with 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dialect", nargs="*", default=DIALECTS, choices=DIALECTS)
    parser.add_argument("--key", default="", help="print each value of the keys with this text")
    options = parser.parse_args()
    os.environ.pop("STROP_HERE", None)
    silent = False
    print("| keys of | values | effect | notice | placement | refused | silent |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files()
        for dialect in options.dialect:
            rows = [row for row in rows_on_page(dialect) if options.key in row.key]
            tried = [each for row in rows for each in try_values(dialect, row)]
            counts = Counter(each.effect for each in tried)
            cells = (dialect, len(tried), *(counts[effect] for effect in EFFECTS))
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            shown = [each for each in tried if options.key or each.effect == "silent"]
            print(*(f"{each.effect}: {each.key}={each.value!r}" for each in shown), sep="\n", file=sys.stderr)
            silent = silent or counts["silent"] > 0
    sys.exit(int(silent))


def write_files() -> None:
    """Write the files that the configurations name into the current folder."""
    Path("trinity.yaml").write_text(BASE, encoding="utf-8")
    Path("elsewhere/Trinity-RFT/rft").mkdir(
        parents=True
    )  # a run that continue_from_checkpoint: false leaves alone
    Path("elsewhere/Trinity-RFT/rft/run.yaml").touch()
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")


def rows_on_page(dialect: str) -> list[KeyMapping]:
    """The rows of the keys that the page lists; `section.*` has no key of its own."""
    return [row for row in LEDGERS[dialect].rows if row.on_page and not row.key.endswith("*")]


def try_values(dialect: str, row: KeyMapping) -> Iterator[Tried]:
    """Set the key to each of its values."""
    key = row.key.replace(".*.", ".one.")
    for value in other_values(dialect, row):
        yield Tried(key, value, effect_of(dialect, key, value))


def other_values(dialect: str, row: KeyMapping) -> list[Any]:
    """Values of the key's type that mean another thing than its value in the configuration."""
    if row.key in _TRIED:
        return list(_TRIED[row.key])
    default = BASES[dialect].get(row.key, row.default)
    given = _yaml_value(dialect, row.key)
    default = default if given is None else given
    while isinstance(default, str) and default.startswith("${"):
        named = LEDGERS[dialect].find(default[2:-1])
        assert named is not None, default
        default = named.default
    if dialect in COMPONENTS and (part := _inputs(dialect)[row.key]).enum:
        values: list[Any] = [part.read(text) for text in part.enum]
    elif isinstance(default, bool):
        values = [not default]
    elif isinstance(default, int | float):
        values = [default * 2, default / 2 if isinstance(default, float) else default // 2, 2, 7]
        values = [value for value in values if value > 0]
    else:
        words = row.value_type.description.removesuffix(", or null").split(" or ")
        values = [value for value in (*words, *_POOL) if value not in ("anything", "a string")]
    others = [value for value in values if row.value_type.accepts(value) and not _is_same(value, default)]
    same = _SAME.get(row.key, ())
    return [value for value in others if not any(_is_same(value, each) for each in same)][:_MAX_VALUES]


def _yaml_value(dialect: str, key: str) -> Any:
    """The value of a key in Trinity's file; None for others."""
    found: Any = yaml.safe_load(BASE) if dialect == "trinity" else {}
    for name in key.split("."):
        found = (
            found.get(name)
            if isinstance(found, dict)
            else found[int(name)]
            if name.isdigit() and found
            else None
        )
    return found


def _is_same(value: Any, other: Any) -> bool:
    return bool(value == other and isinstance(value, bool) == isinstance(other, bool))


def _inputs(dialect: str) -> dict[str, Any]:
    return {part.name: part for part in COMPONENTS[dialect].inputs}


def effect_of(dialect: str, key: str, value: Any) -> Effect:
    """Effect of a value of the key in the configuration of a dialect."""
    base, base_notices, base_placement = _result(dialect)
    try:
        found, notices, placement = _described(_read(dialect, {key: value}))
    except ConfigError:
        return "refused"
    if found != base:
        return "effect"
    if notices != base_notices:
        return "notice"
    return "silent" if placement == base_placement else "placement"


@cache
def _result(dialect: str) -> tuple[Any, ...]:
    return _described(_read(dialect, {}))


def _described(job: Job) -> tuple[Any, ...]:
    loaded = job.loaded
    found = (loaded.run.model_dump(), job.packages, job.outputs, len(loaded.stages))
    return found, Counter(loaded.notes), Counter(map(str, loaded.overridden))


def _read(dialect: str, changed: Values) -> Job:
    """Read the configuration with further values, on this machine."""
    values = BASES[dialect] | changed
    if dialect in COMPONENTS:
        defaults = {name: part.row.default for name, part in _inputs(dialect).items()}
        written = {name: value for name, value in defaults.items() if value is not UNSET} | values
        return read_component(
            dialect, [f"--{key}={to_argument(value)}" for key, value in written.items()], here=True
        )
    words = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    match dialect:
        case "trinity":
            return Job(read_trinity(Path("trinity.yaml"), words, here=True))
        case "verl":
            return Job(read_verl([f"++{word}" for word in words], here=True))
        case _:
            return Job(read_verl_sft([f"++{word}" for word in words], here=True))


if __name__ == "__main__":
    main()
