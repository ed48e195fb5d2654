"""Keys, defaults and inputs of the tools, read from the seed pages, and the copies of them in the folder `pages`."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

SEEDS = Path(__file__).parents[2] / ".." / "shared" / "seeds"
COPIES = Path(__file__).parent / "pages"


def page_copy(name: str) -> Any:
    """The copy of a page: verl's defaults by dotted key, Trinity's names, or a component's inputs and outputs."""
    text = (COPIES / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(
        text, Loader=get_yaml_loader() if PAGES[name][0] == "verl_config.rst" else yaml.SafeLoader
    )


def read_page(name: str) -> Any:
    """The same, from the page itself."""
    file, read = PAGES[name]
    return read((SEEDS / file).read_text(encoding="utf-8"), name)


# -- verl: the YAML blocks of one page --------------------------------------------------------------------

_OTHER_FILES = {
    "verl-eval": ("evaluation.yaml\n----", "sft_trainer.yaml for"),
    "verl-sft": ("sft_trainer.yaml for", None),
}
"""Headings that begin and end the page's sections on two other files."""


def _other_keys(text: str, name: str) -> dict[str, Any]:
    begin, end = _OTHER_FILES[name]
    part = text.split(begin)[1].split(end)[0] if end else text.split(begin)[1]
    blocks = (yaml.load(block, Loader=get_yaml_loader()) for block in _blocks(part + "\n.\n"))
    return {key: default for block in blocks for key, default in _leaves(block)}


def _verl_keys(text: str, name: str) -> dict[str, Any]:
    """Defaults from the blocks before `evaluation.yaml`; the first occurrence of a key counts."""
    found: dict[str, Any] = {}
    for block in _blocks(text.split("evaluation.yaml\n----")[0]):
        values = yaml.load(block, Loader=get_yaml_loader())
        if list(values) == ["optim"]:  # Megatron's optimizer, shown on its own
            values = {"actor_rollout_ref": {"actor": values}}
        if list(values) == ["custom_cls"]:  # shown a second time
            continue
        for key, default in _leaves(values):
            found.setdefault(key, default)
    return found


def _blocks(text: str) -> Iterator[str]:
    block: list[str] | None = None
    for line in text.splitlines():
        if line.startswith(".. code"):
            block = []
        elif block is not None and line and not line.startswith(" "):
            yield textwrap.dedent("\n".join(block))
            block = None
        elif block is not None:
            block.append(line)


def _leaves(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


# -- Trinity: YAML fragments and bullet lists ---------------------------------------------------------------

_END = "Adding New Config Entries for the Config Generator"
_YAML = re.compile(r"^\s*(?:# )?(?:- )?([a-z_]+):(?: .*|)$")
_BULLET = re.compile(r"^\s*• ([a-z_.0-9]+):", re.MULTILINE)
_NO_KEYS = {
    # values of an option, explained in bullets of their own
    *("both", "train", "explore", "bench", "wandb", "tensorboard", "mlflow", "file", "queue", "sql"),
    *("plaintext", "messages", "nccl", "checkpoint", "unrestricted"),
    *("single_thread", "single_process", "single_node"),
    # names and arguments that a user chooses
    *("buffer_1", "buffer_2", "sft_dataset", "other_buffer", "eval_taskset"),
    *("api_or_hf_model", "min_score", "input_keys", "field_names", "config_path"),
    *("reward_shaping_configs", "stats_key", "op_type", "weight"),
}


def _trinity_names(text: str, name: str) -> list[str]:
    """Each name once, in the order of first occurrence."""
    part = text.split(_END)[0]
    found = [m[1] for line in part.splitlines() if (m := _YAML.match(line))]
    found += [name for dotted in _BULLET.findall(part) for name in dotted.split(".")]
    return [name for name in dict.fromkeys(found) if name not in _NO_KEYS]


# -- AzureML: tables of inputs and outputs ------------------------------------------------------------------

_COLUMNS = ("Name", "Description", "Type", "Default", "Optional", "Enum")


def _component_tables(text: str, name: str) -> dict[str, Any]:
    """The inputs and outputs: type, default as text, optional, enum."""
    inputs, outputs = text.split("## Outputs")
    return {"inputs": dict(_rows(inputs)), "outputs": {name: row["type"] for name, row in _rows(outputs)}}


def _rows(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or set(cells[0]) <= {"-"}:
            header = header if line.startswith("|") else []
        elif not header:
            header = cells
            assert set(header) <= set(_COLUMNS), header
        else:
            row = dict(zip(header, cells, strict=True))
            yield row["Name"], _entry(row)


def _entry(row: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": row["Type"]}
    if "Default" in row:
        entry["default"] = None if row["Default"] == "-" else row["Default"].strip("'")
        entry["optional"] = row["Optional"] == "True"
        entry["enum"] = [] if row["Enum"] == "NA" else ast.literal_eval(row["Enum"])
    return entry


PAGES: dict[str, tuple[str, Any]] = {
    "verl": ("verl_config.rst", _verl_keys),
    "verl-eval": ("verl_config.rst", _other_keys),
    "verl-sft": ("verl_config.rst", _other_keys),
    "trinity": ("trinity_config.md", _trinity_names),
    "rft_trainer": ("rft_trainer_component.md", _component_tables),
    "verl_trainer": ("verl_trainer_component.md", _component_tables),
    "grpo": ("grpo_component.md", _component_tables),
}
