"""Model card of a run's model: README.md with the metadata that the Hugging Face Hub reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from strop.config.paths import is_local
from strop.config.redact import safe_text
from strop.runs.formatting import format_number
from strop.runs.overview import held_out_rewards
from strop.runs.reader import RunData
from strop.runs.verdict import verdict

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LICENSE = ("license", "license_name", "license_link")
_MAX_ROWS = 12
"""Rows of the table of curves at most."""
_CURVES = ("reward/mean", "sft_loss", "pairs/accuracy", "response_tokens/mean")


def model_card(data: RunData) -> str:
    """The card: base model and its license, data, algorithm, result, curves, and versions."""
    run = data.configuration()
    algorithm = str(run.get("algorithm", {}).get("type", "grpo"))
    base = str(run.get("model", {}).get("path", ""))
    name = str(run.get("name", data.folder.path.name))
    is_on_hub = _HUB_NAME.fullmatch(base) and not is_local(base)  # no path of the machine that trained
    results = [
        EvalResult("text-generation", taskset, taskset, "reward", value)
        for taskset, value in held_out_rewards(data).items()
    ]
    header = ModelCardData(
        base_model=base if is_on_hub else None,
        library_name="transformers",
        tags=["strop", algorithm],
        model_name=name if results else None,
        eval_results=results or None,
        **_license(base, bool(is_on_hub)),
    )
    lines = [
        "---",
        header.to_yaml().rstrip(),
        "---",
        "",
        f"# {name}",
        "",
        f"{base.rpartition('/')[2]}, trained by {algorithm.upper()} with Strop.",
        "",
        *_facts(data, run),
        "",
        *_curves(data),
        *_versions(data),
    ]
    return safe_text("\n".join(lines).rstrip() + "\n")


def _license(base: str, is_on_hub: bool) -> dict[str, Any]:
    """The license in the card of the base model, if this machine has that card."""
    file = try_to_load_from_cache(base, "README.md") if is_on_hub else Path(base) / "README.md"
    if not isinstance(file, (str, Path)) or not Path(file).is_file():
        return {}
    try:
        card = ModelCard.load(file, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    return {key: card[key] for key in _LICENSE if isinstance(card.get(key), str)}


def _facts(data: RunData, run: dict[str, Any]) -> Iterator[str]:
    train = run.get("data", {}).get("train", {})
    if isinstance(train, dict) and train.get("path"):
        paths = [train["path"]] if isinstance(train["path"], str) else train["path"]
        yield f"- Data: {', '.join(str(path).rpartition('/')[2] for path in paths)}"
    trainer = run.get("trainer", {})
    yield f"- Length: {data.sessions[-1]['steps'] if data.sessions else len(data.rows)} steps"
    yield f"- Learning rate: {trainer.get('optimizer', {}).get('lr', 'unknown')}"
    if summary := verdict(data):
        yield f"- Result: {summary}"


def _curves(data: RunData) -> Iterator[str]:
    """A table of the curves at some of the steps."""
    names = [
        name for name in data.names() if name.startswith("eval/") and name.endswith(("/reward", "/loss"))
    ]
    names += [name for name in _CURVES if name in data.names()]
    rows = [row for row in data.rows if any(row.get(name) is not None for name in names)]
    if not rows:
        return
    evaluated = [
        row for row in rows if any(name.startswith("eval/") and row.get(name) is not None for name in names)
    ]
    rows = (evaluated or rows)[:: -(-len(evaluated or rows) // _MAX_ROWS)]
    yield f"| step | {' | '.join(names)} |"
    yield "| --- " * (len(names) + 1) + "|"
    for row in rows:
        cells = (format_number(value) if (value := row.get(name)) is not None else "" for name in names)
        yield f"| {int(row['step'] or 0)} | {' | '.join(cells)} |"
    yield ""


def _versions(data: RunData) -> Iterator[str]:
    if not data.sessions:
        return
    session = data.sessions[-1]
    packages = ", ".join(f"{name} {version}" for name, version in session.get("packages", {}).items())
    yield f"Python {session.get('python', '')}, {packages}."
    if git := session.get("git"):
        yield f"Git commit of the training code: {git['commit']}{', with changes' if git['modified'] else ''}."
