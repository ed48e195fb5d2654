"""From `buffer.url` to an SQLAlchemy engine: SQLite in WAL mode, or PostgreSQL by psycopg."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError

from strop.errors import ConfigError, MissingExtraError

_EXAMPLES = "`sqlite:///file.db` or `postgresql://user:password@host:5432/database`"
_ANY_NUMBER = -1
"""Of connections: as many as there are threads at work."""
_SQLITE_TIMEOUT_SECONDS = 30.0
"""How long one process waits until the others have written."""
_SQLITE_PAUSE_SECONDS = 0.002
"""How long it sleeps at most until it tries again. SQLite's own pauses grow to 0.1 s, which starves some."""
_POSTGRESQL_OPTIONS = {
    "connect_timeout": 10,  # seconds, as are those of keepalives: a server that is gone is noticed
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


def make_engine(url: str | None, folder: Path) -> sa.Engine:
    """An engine that has not connected yet; a relative SQLite file, and `buffer.db`, stand in the folder.

    Raises `ConfigError` for a URL that names neither kind of database.
    """
    if url is None:
        return _sqlite_engine(folder / "buffer.db")
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        # the text is not shown: there may be a password in it
        raise ConfigError(f"`buffer.url` is no database URL; it looks like {_EXAMPLES}.") from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:":
            return _sqlite_engine(folder / Path(parsed.database).expanduser())
        case "postgresql" | "postgres":
            return _postgresql_engine(parsed.set(drivername="postgresql+psycopg"))
        case "sqlite":
            raise ConfigError(
                "`buffer.url` is a SQLite database in memory, which no other process could see. Name a file, "
                "`sqlite:///file.db`; or take `buffer: queue`, which is in memory."
            )
        case other:
            raise ConfigError(f"`buffer.url` names a {other!r} database. Strop's buffer takes {_EXAMPLES}.")


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, connect_args=_POSTGRESQL_OPTIONS, max_overflow=_ANY_NUMBER)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"`buffer.url` names a PostgreSQL database, which needs {error.name}: pip install 'strop[sql]'"
        ) from error


def _sqlite_engine(file: Path) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(file)),
        connect_args={"timeout": _SQLITE_TIMEOUT_SECONDS},
        max_overflow=_ANY_NUMBER,
    )
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_at_once)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # sqlite3 begins no transactions of its own
    # Of two that make a new file WAL at once SQLite refuses one, without a wait.
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
    connection.execute("PRAGMA synchronous = NORMAL")  # safe against the end of any process
    connection.execute("PRAGMA busy_timeout = 0")


def _begin_at_once(connection: sa.Connection) -> None:
    """Take the write lock first, so that no transaction has to be given up half-way."""
    _patiently(lambda: connection.exec_driver_sql("BEGIN IMMEDIATE"))


def _patiently(work: Callable[[], object]) -> None:
    """Again and again while others hold the file."""
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
        time.sleep(random.uniform(0, _SQLITE_PAUSE_SECONDS))
