"""The resolved run as a run file, secrets redacted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from strop.config.redact import redact
from strop.config.schema import Run

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def save_resolved(run: Run, path: Path) -> None:
    """Write every value of the run, defaults too, so that `load_run(path)` gives the same run again."""
    values = _escape(redact(run.model_dump(mode="json")))
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text, encoding="utf-8")


def _escape(value: Any) -> Any:
    """Values are resolved already: a `${` that is still there is text, and must stay text when read again."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value
