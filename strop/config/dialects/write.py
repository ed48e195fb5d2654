"""A run -> any dialect: its keys and values, and, by reading them back, what they cannot say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.dialects.read import read_elsewhere
from strop.config.dialects.row import Row
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.draft import Draft, Source, plain, split
from strop.config.same import Difference, compare
from strop.config.save import escape
from strop.config.schema import Run
from strop.errors import ConfigError

Takes = Callable[[str, Any], bool]
"""Whether a key may be written with that value."""
_ALWAYS = (
    "model.path",
    "data.train.path",
    "trainer.tasks_per_step",
    "trainer.tasks_per_update",
    "rollout.runners",
)
"""What is trained on what, and how much at once, is always said, though it be the default; how many rollouts
are under way at once is bounded only where it is said."""


@dataclass(frozen=True, slots=True)
class Written:
    """A run in a dialect's words."""

    values: Mapping[str, Any]
    """By dotted key; what the dialect has by itself is left out."""
    unsaid: tuple[Difference, ...]
    """What they say otherwise: `first` is the run's value, `second` what they are read as."""


def write_dialect(
    ledger: Ledger, run: Run, *, takes: Takes = lambda key, value: True, always: Collection[str] = ()
) -> Written:
    """Say a run by a ledger's keys: by those whose value it `takes`, and `always` by some, defaults or not.

    Raises ConfigError where the dialect has nothing like the run's algorithm, or refuses what it would be.
    """
    try:
        values = {
            key: value
            for key, value in _all_values(ledger, run).items()
            if _fits(ledger, key, value) and takes(key, value)
        }
        kept = _without_defaults(ledger, values, always)
        back = read_elsewhere(ledger, draft_of_values(kept))
    except ConfigError as error:
        raise ConfigError(f"This run cannot be said in {ledger.dialect}: {error}") from None
    if back.algorithm.type != run.algorithm.type:
        raise ConfigError(
            f"This run cannot be said in {ledger.dialect}: it has no algorithm like {run.algorithm.type}."
        )
    return Written(kept, tuple(compare(run, back)))


def draft_of_values(values: Mapping[str, Any]) -> Draft:
    """Values by dotted key as if someone had written them."""
    draft = Draft()
    for name, value in nested(values).items():
        draft.set((name,), value, Source("python", "what was written"))
    return draft


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.0.b": 1}` -> `{"a": [{"b": 1}]}`."""
    whole: dict[str, Any] = {}
    for dotted, value in values.items():
        here = whole
        *above, last = split(dotted)
        for key in above:
            here = here.setdefault(key, {})
        here[last] = value
    return {key: _listed(value) for key, value in whole.items()}


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inside = {key: _listed(item) for key, item in value.items()}
    return list(inside.values()) if inside and all(key.isdigit() for key in inside) else inside


def _all_values(ledger: Ledger, run: Run) -> dict[str, Any]:
    """Every write once, in the ledger's order; a mapped key without a read is its field as it is."""
    values: dict[str, Any] = {}
    done = set()
    for row in ledger.rows:
        if row.read is None and row.fate == "mapped" and row.ours:
            values |= _as_it_is(row, run)
        elif row.write is not None and row.write not in done:
            done.add(row.write)
            values |= {key: _simple(value) for key, value in row.write(run).items()}
    place = {row.theirs: place for place, row in enumerate(ledger.rows)}

    def place_of(key: str) -> int:
        row = ledger.find(key)
        return len(place) if row is None else place[row.theirs]

    return dict(sorted(values.items(), key=lambda item: place_of(item[0])))


def _as_it_is(row: Row, run: Run) -> dict[str, Any]:
    found: Any = run
    for key in split(row.ours[0]):
        if not hasattr(found, key):
            return {}
        found = getattr(found, key)
    return {row.theirs: _simple(found)}


def _simple(value: Any) -> Any:
    """As it stands in a file: some keys take whole numbers alone, so a number that is whole is written so."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return escape(plain(value))


def _fits(ledger: Ledger, key: str, value: Any) -> bool:
    """Whether the dialect has the key, and takes such a value for it."""
    row = ledger.find(key)
    if row is None or ("*" in row.theirs and row.fate != "mapped"):
        return False
    return row.kind.fits(value)


def _without_defaults(ledger: Ledger, values: Mapping[str, Any], always: Collection[str]) -> dict[str, Any]:
    """Leave out what the dialect has by itself, given the rest. In a list, null is what is not said."""
    rows = {key: row for key in values if (row := ledger.find(key)) is not None}
    following = [key for key, row in rows.items() if "${" in str(row.default)]
    rest = {key: value for key, value in values.items() if key not in following}
    theirs = Theirs(ledger, draft_of_values(rest))

    def stays(key: str, row: Row) -> bool:
        if row.in_list:
            return values[key] is not None
        if key in always or set(row.ours) & set(_ALWAYS) or "oc.env" in str(row.default):
            return True
        return bool(values[key] != (theirs[key] if key in following else row.default))

    return {key: values[key] for key, row in rows.items() if stays(key, row)}
