"""Tables of SQL databases, read through SQLAlchemy: SQLite, and PostgreSQL through psycopg."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.data.sources.rows import InMemoryRows
from strop.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import sqlalchemy as sa


def postgresql_url(url: sa.URL) -> sa.URL:
    """The URL with Strop's driver, and with UTF-8 as the encoding of the connection.

    A database in SQL_ASCII otherwise returns its own strings as bytes, which SQLAlchemy does not accept.
    """
    return url.set(drivername="postgresql+psycopg").update_query_dict({"client_encoding": "utf8"})


_URL = re.compile(r"^(sqlite|postgres|postgresql)(\+\w+)?://")


def is_database_url(path: str) -> bool:
    """Whether a path is the URL of a database."""
    return _URL.match(path) is not None


def require_queue_url(path: str) -> None:
    """Raise DataError for the path of a task queue that is no URL of a database."""
    if not is_database_url(path):
        raise DataError(
            f"data.queue: {path} is not a database URL. A task queue is a table: write, for example, `path: "
            "sqlite:///tasks.db` and `table: tasks` under data.train."
        )


def read_table(url: str, table: str | None) -> InMemoryRows:
    """All rows of a table, in the order of its primary key, or of the row ids of a SQLite table without one.

    JSON columns become Python values. Raises `DataError` for a database or table that does not exist, is
    empty or has no order, and `MissingExtraError` if a package is missing.
    """
    rows = read_table_slice(url, table, first=0)
    if not len(rows):
        raise DataError(f"{redact_text(url)}, table {table}, is empty: it has no rows.")
    return rows


def read_table_slice(url: str, table: str | None, *, first: int, count: int | None = None) -> InMemoryRows:
    """The rows of a table from row `first` on, counting from 0; at most `count` of them, perhaps none."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtraError(
            f"{redact_text(url)} is a database, which is read with SQLAlchemy: pip install 'strop[sql]'"
        )
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError

    shown = redact_text(url)
    engine = _engine(url, shown)
    try:
        found = _reflect(engine, table, shown)
        with engine.connect() as connection:
            wanted = sa.select(found).order_by(*_order(found, engine, shown)).offset(first).limit(count)
            rows = connection.execute(wanted).mappings().all()
    except SQLAlchemyError as error:
        reason = redact_text(str(error).splitlines()[0])
        raise DataError(f"{shown} cannot be read: {reason}.") from None
    finally:
        engine.dispose()
    return InMemoryRows(f"{shown} table {table}", [dict(row) for row in rows], first)


def _engine(url: str, shown: str) -> sa.Engine:
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise DataError(f"{shown} is not a database URL. Write one such as `sqlite:///tasks.db`.") from None
    if parsed.get_backend_name() != "sqlite":
        parsed = postgresql_url(parsed)
    elif not parsed.database or not Path(parsed.database).expanduser().is_file():
        # SQLite would create an empty database.
        raise DataError(f"There is no SQLite database {parsed.database} ({shown}).")
    else:
        parsed = parsed.set(database=str(Path(parsed.database).expanduser()))
    try:
        return sa.create_engine(parsed)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{shown} needs {error.name}: pip install 'strop[sql]'") from None


def _reflect(engine: sa.Engine, table: str | None, shown: str) -> sa.Table:
    import sqlalchemy as sa

    names = sa.inspect(engine).get_table_names()
    if table not in names:
        fault = "no table is named" if table is None else f"there is no table {table!r}"
        existing = ", ".join(names) or "none"
        raise DataError(f"{shown}: {fault}. Write `table:` next to the path; its tables are: {existing}.")
    return sa.Table(table, sa.MetaData(), autoload_with=engine)


def _order(table: sa.Table, engine: sa.Engine, shown: str) -> Sequence[sa.ColumnElement[Any]]:
    import sqlalchemy as sa

    key = list(table.primary_key.columns)
    if key:
        return key
    if engine.dialect.name == "sqlite":
        return [sa.literal_column("rowid")]
    raise DataError(
        f"{shown}, table {table.name}, has no primary key, so its rows have no order in which a run could be "
        "resumed. Add a primary key, or export the table to a file."
    )
