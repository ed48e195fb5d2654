"""Writing of a run as a run file: all values, or only those that differ from the defaults. No file has a
secret: values from environment variables are written as the interpolations that gave them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from strop.config.load.config_tree import iter_values, value_at
from strop.config.redact import HIDDEN, is_secret, name_environment, redact, redact_text
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json

_FINGERPRINTS = "# Fingerprints of the values from environment variables, which a resume compares: "
"""Begin of a saved run file's last line."""
_ROUNDS = 100_000
_FORMAT: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
_ONLY_INTERPOLATION = re.compile(r"\$\{[^{},]*\}")
_INTERPOLATION = re.compile(r"((?<!\\)\\*)\$\{")


def save_resolved(run: Run, path: Path) -> None:
    """Write every value of the run including defaults, so that `load_run(path)` gives the same run. Secrets
    are redacted."""
    atomic_write(path, resolved_text(run))


def resolved_text(run: Run) -> str:
    """Format every value of the run including defaults, as `save_resolved` writes it."""
    text: str = yaml.safe_dump(saved_values(run), **_FORMAT)
    prints = _environment_fingerprints(run)
    return f"{text}{_FINGERPRINTS}{json.dumps(prints)}\n" if prints else text


def recorded_fingerprints(text: str) -> dict[str, str]:
    """Return the fingerprints of a saved run file's values from the environment, by dotted key."""
    line = next((line for line in reversed(text.splitlines()) if line.startswith(_FINGERPRINTS)), None)
    try:
        found = parse_json(line.removeprefix(_FINGERPRINTS)) if line else {}
    except ValueError:
        return {}
    return {str(field): str(value) for field, value in found.items()} if isinstance(found, dict) else {}


def yaml_text(values: Mapping[str, Any]) -> str:
    """Format values as YAML, with secrets redacted."""
    return yaml.safe_dump(name_environment(redact(values)), **_FORMAT)


def saved_values(run: Run) -> dict[str, Any]:
    """Return all values of a run without secrets, as a run file has them."""
    values: dict[str, Any] = name_environment(redact(escape_interpolations(run.model_dump(mode="json"))))
    for dotted, text in run.interpolations.items():
        *above, last = dotted.split(".")
        section = value_at(values, tuple(above))
        place = int(last) if isinstance(section, list) else last
        section[place] = _without_literal_secret(text, last)
    return values


def _environment_fingerprints(run: Run) -> dict[str, str]:
    """Return a fingerprint of each value that is saved as an interpolation, by dotted key; an empty one for
    keys that name a secret, which may change."""
    dumped = run.model_dump(mode="json")
    plain = {keys: value for keys, value in iter_values(dumped) if isinstance(value, str)}
    return {
        ".".join(keys): "" if is_secret(keys[-1]) else fingerprint(".".join(keys), plain[keys])
        for keys, saved in iter_values(saved_values(run))
        if keys in plain and saved not in (HIDDEN, redact(escape_interpolations(plain[keys]), keys[-1]))
    }


def fingerprint(field: str, value: str) -> str:
    """Return a slow hash of a value, from which a value cannot be guessed quickly. Passwords in URLs do not
    count."""
    shown = str(redact(value, field.rpartition(".")[2]))
    return hashlib.pbkdf2_hmac("sha256", shown.encode(), field.encode(), _ROUNDS).hex()


def folder_mode(run: Run) -> int:
    """Return the permissions of a run's folder: 0700 if the run has secrets, or values from the environment,
    which may be secrets."""
    plain = escape_interpolations(run.model_dump(mode="json"))
    return 0o777 if saved_values(run) == plain else 0o700


def _without_literal_secret(text: str, key: str) -> str:
    """Redact the text around an interpolation, and its default, under a key that names a secret."""
    if is_secret(key) and not _ONLY_INTERPOLATION.fullmatch(text):
        return HIDDEN
    return redact_text(text)


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
