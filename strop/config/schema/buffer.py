"""`buffer`: queue of experiences between explorer and trainer."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from strop.config.schema.base import Section
from strop.config.schema.pipeline import ExperienceOperatorConfig
from strop.config.units import MAX_SECONDS

DEFAULT_BUFFER_NAME = "experience_buffer"
SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JSON_LINES_SUFFIXES = (".jsonl", ".json")


def _known_suffix(path: str) -> str:
    suffixes = SQLITE_SUFFIXES + JSON_LINES_SUFFIXES
    if PurePath(path).suffix.lower() not in suffixes:
        raise ValueError(
            f"the suffix of {path!r} names no file format; end the path with {', '.join(SQLITE_SUFFIXES)} "
            "for "
            f"SQLite, or with {' or '.join(JSON_LINES_SUFFIXES)} for JSON Lines"
        )
    return path


BackupPath = Annotated[str, AfterValidator(_known_suffix)]
"""Path of a backup file; its suffix selects SQLite or JSON Lines."""


class BaseBufferConfig(Section):
    """Fields of every buffer."""

    read_timeout_seconds: float = Field(1800.0, ge=0, le=MAX_SECONDS)
    """Maximum wait for a complete batch; after it the trainer reads an incomplete batch."""
    on_timeout: Literal["stop", "train"] = "stop"
    """Treatment of an incomplete batch by a trainer with a separate explorer. `stop` ends the run under the style
    `fixed`, and if no group arrived; `train` trains on the groups that arrived, drops those of the step that come
    later, and waits once more if none arrived. Other styles than `fixed` always train on an incomplete batch."""
    pipeline: tuple[ExperienceOperatorConfig, ...] = ()
    """Operators that change or remove scored rollouts before they enter the buffer, in order; none by default."""


class QueueBufferConfig(BaseBufferConfig):
    """First-in, first-out queue in memory; a separate process if explorer and trainer are separate
    processes."""

    type: Literal["queue"] = "queue"
    name: str = Field(DEFAULT_BUFFER_NAME, min_length=1)
    """Name of the buffer's actor on Ray."""
    capacity_groups: int = Field(4096, gt=0)
    """Maximum number of groups in the queue; when it is full, writers wait."""
    write_timeout_seconds: float = Field(1800.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a writer waits for free capacity; after it the run stops with an error."""
    backup: BackupPath | None = None
    """Backup file (`.db` for SQLite, `.jsonl` for JSON Lines), from which an interrupted run restores the
    groups that were not yet trained on; a relative path is relative to the run's folder. If null, there is no
    backup in a single process, and `buffer.db` if explorer and trainer are separate processes."""


class PriorityBufferConfig(BaseBufferConfig):
    """Priority queue in memory. The priority of a group is its weights version minus `use_penalty` times its
    number of uses."""

    type: Literal["priority"] = "priority"
    name: str = Field(DEFAULT_BUFFER_NAME, min_length=1)
    """Name of the buffer's actor on Ray."""
    capacity_groups: int = Field(4096, gt=0)
    """Maximum number of groups; when it is exceeded, the group of lowest priority is dropped."""
    reuse_cooldown_seconds: float | None = Field(None, ge=0, le=MAX_SECONDS)
    """Time after a read until the same group can be read again; null reads each group once."""
    use_penalty: float = Field(2.0, ge=0)
    """Reduction of the priority per use, in versions of the weights."""
    noise: float = Field(0.0, ge=0)
    """Standard deviation of the noise in the priority of each use; 0 for none."""
    max_uses: int | None = Field(None, gt=0)
    """Maximum number of reads of a group; null for no maximum."""
    backup: BackupPath | None = None
    """Backup file (`.db` for SQLite, `.jsonl` for JSON Lines), from which an interrupted run restores the
    groups that were not yet trained on; a relative path is relative to the run's folder. If null, there is no
    backup in a single process, and `buffer.db` if explorer and trainer are separate processes."""


class SqlBufferConfig(BaseBufferConfig):
    """Table of a SQLite or PostgreSQL database; writers and readers may be any process on any machine."""

    type: Literal["sql"] = "sql"
    url: str | None = None
    """Database URL: `sqlite:///file.db` (`relative_to` says what a relative path is relative to) or
    `postgresql://user:password@host/database`; null is `buffer.db` in the run's folder."""
    relative_to: Literal["run", "working_directory"] = "run"
    """Folder that a relative path in `url` is relative to: the run's, or the one in which the command runs."""
    name: str | None = Field(None, min_length=1)
    """Name of the buffer in the database, which belongs to one run; null is `<project>/<name>` of the run."""
    capacity_groups: int = Field(4096, gt=0)
    """Maximum number of groups in the queue; when it is full, writers wait."""
    write_timeout_seconds: float = Field(1800.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a writer waits for free capacity; after it the run stops with an error."""
    lease_seconds: float = Field(60.0, gt=0, le=MAX_SECONDS)
    """Time without a heartbeat after which a process counts as dead, and its unfinished groups return to the
    queue."""
    reconnect_timeout_seconds: float = Field(600.0, ge=0, le=MAX_SECONDS)
    """Maximum time to reconnect to an unavailable database; after it the run stops with an error."""


class FileBufferConfig(BaseBufferConfig):
    """Folder with one readable file per write, for inspection; it only grows, and supports one reader."""

    type: Literal["file"] = "file"
    path: str = "experiences"
    """Folder of the files; a relative path is relative to the run's folder."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    """File format: one group per line (`jsonl`) or per row (`parquet`)."""


BufferConfig = Annotated[
    QueueBufferConfig | PriorityBufferConfig | SqlBufferConfig | FileBufferConfig, Field(discriminator="type")
]
