"""A run as a run file, whole or with what differs from the defaults alone, secrets redacted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from strop.config.redact import redact
from strop.config.schema import Run
from strop.config.schema.base import Section

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def save_resolved(run: Run, path: Path) -> None:
    """Write every value of the run, defaults too, so that `load_run(path)` gives the same run again."""
    path.write_text(yaml_text(escape(run.model_dump(mode="json"))), encoding="utf-8")


def yaml_text(values: Mapping[str, Any]) -> str:
    """Values as YAML, secrets redacted."""
    return yaml.safe_dump(redact(values), sort_keys=False, allow_unicode=True, width=100)


def said(section: Section) -> dict[str, Any]:
    """What must be written to have the section: its kind, and what differs from the defaults; escaped."""
    values: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        default = field.get_default(call_default_factory=True, validated_data=dict(section))
        if name == "type" or field.is_required() or value != default:
            values[name] = _plain(value, default) if _has_sections(value) else _dumped(section, name)
    return dict(sorted(values.items(), key=lambda item: item[0] != "type"))


def _has_sections(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return bool(items) and all(isinstance(item, Section) for item in items)


def _plain(value: Any, default: Any) -> Any:
    """A section that its own defaults make is written as what tells it from the field's default."""
    if isinstance(value, tuple):
        return [said(item) for item in value]
    other = type(default) is type(value)
    telling = [n for n in type(value).model_fields if not other or getattr(value, n) != getattr(default, n)]
    return said(value) or {name: _dumped(value, name) for name in telling}


def _dumped(section: Section, name: str) -> Any:
    return escape(section.model_dump(mode="json", include={name})[name])


def escape(value: Any) -> Any:
    """Values are resolved already: a `${` that is still there is text, and must stay text when read again."""
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape(item) for item in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value
