"""Connection URL of a PostgreSQL database, for data sources and buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa


def postgresql_url(url: sa.URL) -> sa.URL:
    """The URL with Strop's driver, and with UTF-8 as the encoding of the connection.

    A database in SQL_ASCII otherwise returns its own strings as bytes, which SQLAlchemy does not accept.
    """
    return url.set(drivername="postgresql+psycopg").update_query_dict({"client_encoding": "utf8"})
