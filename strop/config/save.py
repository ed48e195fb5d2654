"""Writing of a run as a run file: all values, or only those that differ from the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from strop.config.redact import redact
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.workers.atomic_write import atomic_write

_INTERPOLATION = re.compile(r"(\\*)\$\{")


def save_resolved(run: Run, path: Path) -> None:
    """Write every value of the run including defaults, so that `load_run(path)` gives the same run. Secrets
    are redacted."""
    atomic_write(path, resolved_text(run))


def resolved_text(run: Run) -> str:
    """Format every value of the run including defaults, as `save_resolved` writes it."""
    return yaml_text(escape_interpolations(run.model_dump(mode="json")))


def yaml_text(values: Mapping[str, Any]) -> str:
    """Format values as YAML, with secrets redacted."""
    return yaml.safe_dump(redact(values), sort_keys=False, allow_unicode=True, width=100)


def minimal_values(section: Section) -> dict[str, Any]:
    """Return the values that define a section: its type, and values that differ from the defaults. `${` is
    escaped."""
    values: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        default = field.get_default(call_default_factory=True, validated_data=dict(section))
        if name == "type" or field.is_required() or value != default:
            values[name] = (
                _minimal_value(value, default) if _has_sections(value) else _dump_field(section, name)
            )
    return dict(sorted(values.items(), key=lambda item: item[0] != "type"))


def _has_sections(value: Any) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return bool(items) and all(isinstance(item, Section) for item in items)


def _minimal_value(value: Any, default: Any) -> Any:
    """Return the minimal values of a section; if all are defaults, the values that differ from the field's
    default."""
    if isinstance(value, tuple):
        return [minimal_values(item) for item in value]
    same_type = type(default) is type(value)
    differing = [
        n for n in type(value).model_fields if not same_type or getattr(value, n) != getattr(default, n)
    ]
    return minimal_values(value) or {name: _dump_field(value, name) for name in differing}


def _dump_field(section: Section, name: str) -> Any:
    return escape_interpolations(section.model_dump(mode="json", include={name})[name])


def escape_interpolations(value: Any) -> Any:
    """Escape `${` in resolved values, where it is text and not an interpolation."""
    if isinstance(value, dict):
        return {key: escape_interpolations(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape_interpolations(item) for item in value]
    return _INTERPOLATION.sub(r"\1\1\\${", value) if isinstance(value, str) else value
