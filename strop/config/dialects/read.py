"""Any dialect -> a run: every key that someone wrote is honoured, said to be inactive, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from strop.config.dialects.row import Read, Row
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.draft import Draft, Source, split, walk
from strop.config.explain import shown
from strop.config.load import Loaded, run_sources
from strop.config.placement import SetAside, refuse
from strop.config.redact import brief, redact
from strop.config.schema import Run
from strop.config.validate import validate
from strop.errors import ConfigError

_REQUIRED = ("model.path", "data.train.path")
"""Fields of the run file that have no default."""


def read_dialect(ledger: Ledger, draft: Draft, *, here: bool) -> Loaded:
    """Turn what was written in a dialect into a run.

    Raises ConfigError for keys and values that cannot be taken, and PlacementError for a written
    placement that cannot be had, unless `here` sets it aside.
    """
    theirs = Theirs(ledger, draft, here=here)
    set_aside = check_written(theirs)
    run, ours = _run_of(theirs)
    return Loaded(run, run_sources(run, ours.source), set_aside, tuple(notes_of(theirs)))


def read_elsewhere(ledger: Ledger, draft: Draft) -> Run:
    """The run as it is where all that its placement asks for is there. Raises ConfigError."""
    theirs = Theirs(ledger, draft)
    _check_values(theirs)
    return _run_of(theirs)[0]


def check_written(theirs: Theirs) -> tuple[SetAside, ...]:
    """Whether every written value is of its kind and can be had; what `--here` sets aside.

    Raises ConfigError, and PlacementError for a placement that cannot be had.
    """
    set_aside = tuple(
        SetAside(key, redact(theirs[key], key), row.note)
        for key, row in _check_values(theirs).items()
        if row.fate == "placement" and not _can(theirs, key, row)
    )
    if set_aside and not theirs.here:
        raise refuse(set_aside)
    return set_aside


def _check_values(theirs: Theirs) -> Mapping[str, Row]:
    """The written keys that count, once their values are of their kinds and none is refused."""
    _refuse(_wrong_kinds(theirs))
    active = {key: row for key, row in theirs.written.items() if row.off is None or not row.off(theirs)}
    _refuse(_not_honoured(theirs, active))
    return active


def _run_of(theirs: Theirs) -> tuple[Run, Draft]:
    ours = convert(theirs)
    _refuse(_missing(theirs, ours))
    return validate(ours.values, ours, theirs.ledger.dialect), ours


def _refuse(faults: Iterator[str]) -> None:
    found = list(faults)
    if found:
        raise ConfigError("\n".join(found))


def _wrong_kinds(theirs: Theirs) -> Iterator[str]:
    for key, row in theirs.written.items():
        if not row.kind.fits(theirs[key]):
            yield f"{theirs.source(key)}: {key} is {row.kind.words}, got {brief(theirs[key], key)}."


def _not_honoured(theirs: Theirs, active: Mapping[str, Row]) -> Iterator[str]:
    for key, row in active.items():
        if row.fate == "refused" and not _can(theirs, key, row):
            yield f"{theirs.source(key)}: {key} cannot be {brief(theirs[key], key)} here: {row.note}."


def _missing(theirs: Theirs, ours: Draft) -> Iterator[str]:
    for field in _REQUIRED:
        key = next((row.theirs for row in theirs.ledger.rows if field in row.ours), field)
        if ours.get(split(field)) is None:
            yield str(theirs.fault(key, f"{key} is missing; it must be given."))


def _can(theirs: Theirs, key: str, row: Row) -> bool:
    return row.can is not None and row.can(theirs, theirs[key])


def convert(theirs: Theirs) -> Draft:
    """Run every row's read once, in the ledger's order, and note which key of theirs decided each field."""
    ours, faults = Draft(), []
    for read in dict.fromkeys(
        row.read or _as_it_is(row) for row in theirs.ledger.rows if row.ours or row.read
    ):
        try:
            settings = read(theirs)
        except ConfigError as error:
            faults.append(str(error))
            continue
        for field, value in settings.items():
            ours.set(split(field), value, _source_of(theirs, field, read))
            for keys, _ in walk(value, split(field)):
                ours.said[keys] = _source_of(theirs, ".".join(keys), read)
    _refuse(iter(faults))
    return ours


def _as_it_is(row: Row) -> Read:
    return lambda theirs: {row.ours[0]: theirs[row.theirs]}


def _source_of(theirs: Theirs, field: str, read: Read) -> Source:
    """The key that decided a field of ours: of those that `read` reads, or else of all, the last one that
    counts, written ones first."""
    rows = [r for r in theirs.ledger.rows if field in r.ours and (r.off is None or not r.off(theirs))]
    rows = [row for row in rows if row.read is read] or rows
    written = [key for row in rows for key in theirs.keys_of(row)]
    if not rows:
        return Source("dialect", f"fixed by {theirs.ledger.dialect}")
    key = (written or [rows[-1].theirs])[-1]
    return replace(theirs.source(key), theirs=f"{key}={shown(split(key)[-1], theirs[key])}")


def notes_of(theirs: Theirs) -> Iterator[str]:
    """What was written and changes nothing, and why; and what to know of what does."""
    for key, row in theirs.written.items():
        why = row.off(theirs) if row.off else None
        if why:
            yield f"{theirs.source(key)}: inactive, because {why}."
        elif row.deprecated:
            yield f"{theirs.source(key)}: deprecated; {row.deprecated}."
        elif row.fate == "accepted without effect":
            yield f"{theirs.source(key)}: accepted without effect: {row.note}."
        elif row.warn and (told := row.warn(theirs)):
            yield f"{theirs.source(key)}: {told}."
