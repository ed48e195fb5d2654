"""SQLAlchemy engines for `buffer.url`: SQLite in WAL mode, or PostgreSQL through psycopg."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError

from strop.data.sources.postgresql import postgresql_url
from strop.errors import ConfigError, MissingExtraError

_EXAMPLES = "`sqlite:///file.db` or `postgresql://user:password@host:5432/database`"
_UNLIMITED_OVERFLOW = -1
"""SQLAlchemy's value for as many connections as there are threads that need one."""
_SQLITE_TIMEOUT_SECONDS = 30.0
"""Longest wait of one process for the writes of others."""
_SQLITE_RETRY_SECONDS = 0.002
"""Longest pause between two attempts. SQLite's own pauses grow to 0.1 s, which starves some processes."""
_POSTGRESQL_OPTIONS = {
    "connect_timeout": 10,  # seconds, like those of the keepalives, which detect a server that is gone
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


def make_engine(url: str | None, folder: Path) -> sa.Engine:
    """An engine that is not connected yet. `folder` is the base of a relative SQLite file; without a URL the
    database is `buffer.db` there.

    Raises `ConfigError` for a URL of another kind of database.
    """
    if url is None:
        return _sqlite_engine(folder / "buffer.db")
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return _postgresql_engine(postgresql_url(parsed))
    named = Path(str(parsed.database)).expanduser()
    file = folder / named
    if not named.is_absolute():
        file.parent.mkdir(parents=True, exist_ok=True)
    return _sqlite_engine(file)


def parse_url(url: str) -> sa.URL:
    """The URL of a database that processes can share: a SQLite file, or PostgreSQL. Raises `ConfigError` for others."""
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        # The message does not show the URL, which may contain a password.
        raise ConfigError(f"`buffer.url` is not a database URL. Write {_EXAMPLES}.") from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return parsed
        case "postgresql" | "postgres":
            return parsed
        case "sqlite":
            raise ConfigError(
                "`buffer.url` is a SQLite database in memory, which other processes cannot use. Write a "
                "file, `sqlite:///file.db`, or `buffer: queue`, which is in memory."
            )
        case other:
            raise ConfigError(f"`buffer.url` names a {other!r} database. Write {_EXAMPLES}.")


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, connect_args=_POSTGRESQL_OPTIONS, max_overflow=_UNLIMITED_OVERFLOW)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"`buffer.url` names a PostgreSQL database, which needs {error.name}: pip install 'strop[sql]'"
        ) from error


def _sqlite_engine(file: Path) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        connect_args={"timeout": _SQLITE_TIMEOUT_SECONDS},
        max_overflow=_UNLIMITED_OVERFLOW,
    )
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_immediate)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # sqlite3 begins no transactions by itself
    # If two processes switch a new file to WAL at once, SQLite refuses one of them without a wait.
    _retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
    connection.execute("PRAGMA synchronous = NORMAL")  # safe if any process is killed
    connection.execute("PRAGMA busy_timeout = 0")


def _begin_immediate(connection: sa.Connection) -> None:
    """Take the write lock first, so that no transaction has to be aborted in the middle."""
    _retry_while_busy(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))


def _retry_while_busy(work: Callable[[], object]) -> None:
    """Retry while other processes hold the file's lock."""
    deadline = time.monotonic() + _SQLITE_TIMEOUT_SECONDS
    while True:
        try:
            work()
            return
        except (OperationalError, sqlite3.OperationalError) as error:
            cause = error.orig if isinstance(error, OperationalError) else error
            if getattr(cause, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0, _SQLITE_RETRY_SECONDS))
