"""A database that may go away and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from strop.buffer.sql.tables import metadata
from strop.buffer.wait import Check, Wait, log
from strop.errors import StoreError

T = TypeVar("T")

_CREATE_LOCK = 0x5374_726F_70
"""The advisory lock (`Strop` in ASCII) under which the tables are made in PostgreSQL."""
_RETRY_SECONDS = 0.5


class Database:
    """Runs transactions; again and again while the database is away, `outage_seconds` at most.

    A transaction whose commit was not answered may have been done: each must bear being run twice.
    """

    def __init__(self, engine: sa.Engine, *, outage_seconds: float, check: Check) -> None:
        self._engine = engine
        self._outage_seconds = outage_seconds
        self._check = check
        self._closed = False
        self.url = engine.url.render_as_string(hide_password=True)
        try:
            self.run_once(self._create_tables)
        except SQLAlchemyError as error:
            engine.dispose()
            raise StoreError(
                f"The experience buffer at {self.url} cannot be opened: {_reason(error)}. Check "
                "`buffer.url`: a server must run there and let this user make tables; a file's folder must "
                "be there."
            ) from error

    @property
    def is_postgresql(self) -> bool:
        """Otherwise it is SQLite."""
        return self._engine.dialect.name == "postgresql"

    def now(self) -> sa.ColumnElement[float]:
        """Seconds since 1970 by one clock for all: the server's, or this machine's for a file on it."""
        if self.is_postgresql:
            return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
        return sa.literal(time.time(), sa.Double)

    def insert(self, table: sa.Table) -> Any:
        """An INSERT of the database's own kind, which knows `on_conflict_do_nothing`."""
        return (postgresql if self.is_postgresql else sqlite).insert(table)

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in one transaction. Raises `StoreError` when the database stays away too long."""
        if self._closed:
            raise StoreError("The buffer is closed.")
        wait = Wait(self._outage_seconds, self._check)
        away = False
        while True:
            try:
                result = self.run_once(work)
            except DBAPIError as error:
                if not isinstance(error, OperationalError) and not error.connection_invalidated:
                    raise
                if not away:
                    log.warning(
                        "The database %s does not answer: %s. Trying again.", self.url, _reason(error)
                    )
                away = True
                self._sleep(wait, error)
                continue
            if away:
                log.warning("The database %s answers again, after %.0f s.", self.url, wait.seconds)
            return result

    def run_once(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in one transaction; SQLAlchemy raises what goes wrong."""
        with self._engine.begin() as connection:
            return work(connection)

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._engine.dispose()

    def _sleep(self, wait: Wait, error: DBAPIError) -> None:
        if wait.left <= 0:
            raise StoreError(
                f"The experience buffer's database {self.url} has not answered for {wait.seconds:.0f} s: "
                f"{_reason(error)}. When it is there again, start the run again: it goes on from its last "
                "checkpoint. How long to wait is `buffer.outage_seconds`."
            ) from error
        time.sleep(wait.slice(f"the database {self.url}", _RETRY_SECONDS))

    def _create_tables(self, connection: sa.Connection) -> None:
        if self.is_postgresql:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATE_LOCK)))
        metadata.create_all(connection)


def _reason(error: SQLAlchemyError) -> str:
    """The driver's own first line, without the statement and its parameters."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().split("\n")[0].rstrip(".")
