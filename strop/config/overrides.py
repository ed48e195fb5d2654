"""`a.b=1`, `+a.b=1`, `++a.b=1`, `~a.b`: Hydra's grammar, read by Hydra's own parser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from strop.config.draft import Draft, Keys, Source, split
from strop.config.redact import redact_override
from strop.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

Known = Callable[[Keys], bool]
"""Whether a key is there although nobody wrote it: it has a default."""


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Read overrides. Raises ConfigError for one that is not understood, or that would sweep."""
    if not texts:
        return []  # Hydra's parser takes a tenth of a second of CPU to import.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    overrides = []
    for text in texts:
        shown = f"override {redact_override(text)!r}"
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{shown}: not understood: {reason}. An override is written key=value; a value with spaces, "
                "'=', ',', '~' or quotes in it wants quotes of its own: \"key='a, b'\"."
            ) from None
        if override.package is not None or "/" in override.key_or_group:
            raise ConfigError(
                f"{shown}: keys are dotted; config groups ('/') and packages ('@') are not used."
            )
        if override.is_sweep_override():
            raise ConfigError(f"{shown}: this names several runs; write a list in brackets, or one value.")
        overrides.append(override)
    return overrides


def apply_override(draft: Draft, override: Override, known: Known, suggest: Callable[[str], str]) -> None:
    """Write one override into the draft. `suggest` adds "did you mean ...?" to an unknown key.

    Raises ConfigError where Hydra does: `a=` for a key that is not there, `+a=` for one that is
    already written, `~a` for one that is not.
    """
    text = redact_override(override.input_line or "")
    source = Source("override", text)
    dotted = override.key_or_group
    keys = split(dotted)
    if override.is_delete():
        _delete(draft, keys, override, source)
        return
    if override.is_add() and not override.is_force_add() and draft.has(keys):
        where = draft.source(keys)
        raise ConfigError(
            f"{source}: {dotted} is already written ({where}), and + adds what is not; write {text[1:]}."
        )
    adds = override.is_add() or override.is_force_add()
    if not adds and not draft.has(keys) and not known(keys):
        raise ConfigError(
            f"{source}: there is no key {dotted}{suggest(dotted) or '; to add a new one, write +' + text}"
        )
    draft.merge(keys, override.value(), source)


def _delete(draft: Draft, keys: Keys, override: Override, source: Source) -> None:
    dotted = ".".join(keys)
    if not draft.has(keys):
        raise ConfigError(f"{source}: {dotted} is not written anywhere, so there is nothing to take away.")
    expected = override.value()
    if expected is not None and draft.get(keys) != expected:
        raise ConfigError(f"{source}: {dotted} is {draft.get(keys)!r}, not {expected!r}, so it stays.")
    draft.delete(keys)
