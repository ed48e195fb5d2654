"""Keys and defaults of verl's configuration, read from the YAML blocks of its seed page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

COPY = Path(__file__).parent / "verl_page.yaml"
PAGE = Path(__file__).parents[2] / ".." / "shared" / "seeds" / "verl_config.rst"


OTHERS = {
    "verl-eval": ("evaluation.yaml\n----", "sft_trainer.yaml for"),
    "verl-sft": ("sft_trainer.yaml for", None),
}
"""Headings that begin and end the page's sections on the other two files."""


def page_copy() -> dict[str, Any]:
    """Defaults by dotted key, from the copy in this folder."""
    return yaml.load(COPY.read_text(), Loader=get_yaml_loader())


def other_copy(dialect: str) -> dict[str, Any]:
    """Defaults by dotted key of one of the page's other files."""
    path = Path(__file__).parent / "pages" / f"{dialect}.yaml"
    return yaml.load(path.read_text(), Loader=get_yaml_loader())


def other_keys(text: str, dialect: str) -> dict[str, Any]:
    """Defaults by dotted key, from the page itself."""
    begin, end = OTHERS[dialect]
    part = text.split(begin)[1].split(end)[0] if end else text.split(begin)[1]
    blocks = (yaml.load(block, Loader=get_yaml_loader()) for block in _blocks(part + "\n.\n"))
    return {key: default for block in blocks for key, default in _leaves(block)}


def page_keys(text: str) -> dict[str, Any]:
    """Defaults by dotted key, from the blocks before `evaluation.yaml`; the first occurrence of a key
    counts."""
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
