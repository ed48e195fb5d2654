"""The database of `buffer.url`: SQLite in WAL mode, or PostgreSQL through psycopg; it may be unreachable for a time.
One database may hold the buffers of many runs.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from strop.data.sources.sql_table import postgresql_url
from strop.errors import ConfigError, MissingExtraError, StoreError
from strop.workers.waiting import StopCheck, TimedWait

SCHEMA_VERSION = 1
"""Version of the tables, increased whenever they change; a buffer of another version is refused."""

metadata = MetaData()

buffers = Table(
    "strop_buffers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("layout", Integer, nullable=False),
)

groups = Table(
    "strop_groups",
    metadata,
    # The order of arrival. SQLite increments only an INTEGER by itself.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("buffer", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("state", Text, nullable=False),  # queued, claimed (leased to a reader), done
    Column("session", Text),  # session of the reader that leases the group
    Column("claim", Integer),  # number of the reader's lease
    Column("content", LargeBinary),  # NULL once the group is done
    UniqueConstraint("buffer", "id", name="strop_groups_id"),
    Index("strop_groups_state", "buffer", "state", "number"),
)

members = Table(
    "strop_members",
    metadata,
    Column("buffer", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("session", Text, nullable=False),  # of the last process of this name; empty after it has left
    Column("writes", Boolean, nullable=False),
    Column("finished", Boolean, nullable=False),
    Column("alive_until", Double, nullable=False),  # seconds since 1970, by the database's clock
)


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
log = logging.getLogger("strop.buffer")
T = TypeVar("T")
_CREATE_LOCK = 0x5374_726F_70
"""Advisory lock (`Strop` in ASCII) for the creation of the tables in PostgreSQL."""
_RETRY_SECONDS = 0.5
_SQLITE_OUTAGES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
"""Errors of SQLite after which the same transaction can succeed."""
DAMAGED_HINT = "If the database is damaged, restore it, or start a new run with another one."


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


class Database:
    """Runs transactions, and retries them for `reconnect_timeout_seconds` while the database is unreachable.

    A transaction whose commit got no reply may have been committed, so each must be idempotent.
    """

    def __init__(self, engine: sa.Engine, *, reconnect_timeout_seconds: float, check: StopCheck) -> None:
        self._engine = engine
        self._reconnect_timeout_seconds = reconnect_timeout_seconds
        self._check = check
        self._closed = False
        self.url = engine.url.render_as_string(hide_password=True)
        try:
            self.run_once(self._create_tables)
        except (SQLAlchemyError, UnicodeDecodeError) as error:  # the last: a damaged schema
            engine.dispose()
            raise StoreError(
                f"The experience buffer at {self.url} cannot be opened: {_reason(error)}. Check "
                "`buffer.url`: a server must run there and allow this user to create tables; a file's folder "
                "must exist."
            ) from error

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL; otherwise it is SQLite."""
        return self._engine.dialect.name == "postgresql"

    def now(self) -> sa.ColumnElement[float]:
        """Seconds since 1970, by the server's clock, or this machine's clock for a SQLite file."""
        if self.is_postgresql:
            return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
        return sa.literal(time.time(), sa.Double)

    def insert(self, table: sa.Table) -> Any:
        """An INSERT of the database's dialect, which has `on_conflict_do_nothing`."""
        return (postgresql if self.is_postgresql else sqlite).insert(table)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the work in one transaction. Raises `StoreError` if the database cannot be reached for too
        long, or refuses the work."""
        if self._closed:
            raise StoreError("The buffer is closed.")
        wait = TimedWait(self._reconnect_timeout_seconds, self._check)
        is_away = False
        while True:
            try:
                result = self.run_once(work)
            except (DBAPIError, UnicodeDecodeError) as error:
                if not _is_outage(error):
                    raise StoreError(
                        f"The experience buffer's database {self.url} cannot be used: {_reason(error)}. {DAMAGED_HINT}"
                    ) from error
                if not is_away:
                    log.warning(
                        "The database %s does not respond: %s. Trying again.", self.url, _reason(error)
                    )
                is_away = True
                self._sleep(wait, error)
                continue
            if is_away:
                log.warning("The database %s responds again, after %.0f s.", self.url, wait.elapsed_seconds)
            return result

    def run_once(self, work: Callable[[sa.Connection], T]) -> T:
        """Run the work in one transaction, without retries. Raises SQLAlchemy's errors."""
        with self._engine.begin() as connection:
            return work(connection)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._engine.dispose()

    def _sleep(self, wait: TimedWait, error: Exception) -> None:
        if wait.remaining_seconds <= 0:
            raise StoreError(
                f"The experience buffer's database {self.url} has not responded for "
                f"{wait.elapsed_seconds:.0f} s: {_reason(error)}. Start the run again when the database is "
                "back: it resumes from its last checkpoint. The limit is `buffer.reconnect_timeout_seconds`."
            ) from error
        wait.sleep(f"the database {self.url}", _RETRY_SECONDS)

    def _create_tables(self, connection: sa.Connection) -> None:
        if self.is_postgresql:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATE_LOCK)))
        metadata.create_all(connection)


def _is_outage(error: Exception) -> bool:
    """Whether the database is unreachable for now. Damage to a SQLite file is an OperationalError in part."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SQLITE_OUTAGES
    return isinstance(error, OperationalError) or getattr(error, "connection_invalidated", False)


def _reason(error: Exception) -> str:
    """The first line of the driver's message, without the statement and its parameters."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().split("\n")[0].rstrip(".")
