"""`buffer`: where experiences wait between explorer and trainer."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from strop.config.schema.base import Section

DEFAULT_NAME = "experience_buffer"
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JSON_LINES_SUFFIXES = (".jsonl", ".json")


def _known_suffix(path: str) -> str:
    suffixes = SQLITE_SUFFIXES + JSON_LINES_SUFFIXES
    if PurePath(path).suffix.lower() not in suffixes:
        raise ValueError(
            f"{path!r} does not say what kind of file it is: end it with {', '.join(SQLITE_SUFFIXES)} for "
            f"SQLite, or with {' or '.join(JSON_LINES_SUFFIXES)} for JSON Lines"
        )
    return path


BackupPath = Annotated[str, AfterValidator(_known_suffix)]
"""A file whose ending says whether it is SQLite or JSON Lines."""


class BufferBase(Section):
    """What every buffer has."""

    read_timeout_seconds: float = Field(1800.0, ge=0)
    """Longest wait for a whole batch; after it an incomplete one is read."""


class QueueBuffer(BufferBase):
    """First in, first out, in memory; a process of its own where explorer and trainer are apart."""

    type: Literal["queue"] = "queue"
    name: str = Field(DEFAULT_NAME, min_length=1)
    """On Ray, its name as an actor."""
    capacity_groups: int = Field(4096, gt=0)
    """So many groups wait at most; then writers wait."""
    write_timeout_seconds: float = Field(1800.0, ge=0)
    """Longest wait of a writer for room; after it the run stops and says so."""
    backup: BackupPath | None = None
    """A file (`.db` for SQLite, `.jsonl` for JSON Lines) in the run's folder, or an absolute path; from it
    a run that was interrupted takes up what was not yet trained on. Null keeps none in one process, and
    `buffer.db` where explorer and trainer are apart."""


class PriorityBuffer(BufferBase):
    """The newest and least used first, in memory as a queue is: highest version minus twice the uses."""

    type: Literal["priority"] = "priority"
    name: str = Field(DEFAULT_NAME, min_length=1)
    """On Ray, its name as an actor."""
    capacity_groups: int = Field(4096, gt=0)
    """So many groups are held at most; when there are more, the one of lowest priority is dropped."""
    reuse_cooldown_seconds: float | None = Field(None, ge=0)
    """So long after it was read, a group can be read again; null reads each once."""
    backup: BackupPath | None = None
    """A file (`.db` for SQLite, `.jsonl` for JSON Lines) in the run's folder, or an absolute path; from it
    a run that was interrupted takes up what was not yet trained on. Null keeps none in one process, and
    `buffer.db` where explorer and trainer are apart."""


class SqlBuffer(BufferBase):
    """A table of a SQLite or PostgreSQL database, for writers and readers in any process on any machine."""

    type: Literal["sql"] = "sql"
    url: str | None = None
    """`sqlite:///file.db` (in the run's folder, unless the path is absolute) or
    `postgresql://user:password@host/database`; null is `buffer.db` in the run's folder."""
    name: str | None = Field(None, min_length=1)
    """Which buffer of that database; null is `<project>/<name>` of the run. One buffer belongs to one run."""
    capacity_groups: int = Field(4096, gt=0)
    """So many groups wait at most; then writers wait."""
    write_timeout_seconds: float = Field(1800.0, ge=0)
    """Longest wait of a writer for room; after it the run stops and says so."""
    lease_seconds: float = Field(60.0, gt=0)
    """A process that was not heard of for so long counts as dead, and what it had read goes back."""
    outage_seconds: float = Field(600.0, ge=0)
    """Longest wait for a database that has gone away; after it the run stops and says so."""


class FileBuffer(BufferBase):
    """A folder with one readable file per write, to look at; it grows, and is for one reader."""

    type: Literal["file"] = "file"
    path: str = "experiences"
    """The folder, in the run's folder unless the path is absolute."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """One group per line, or per row."""


Buffer = Annotated[QueueBuffer | PriorityBuffer | SqlBuffer | FileBuffer, Field(discriminator="type")]
