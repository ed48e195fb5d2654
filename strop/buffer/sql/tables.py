"""The tables of a buffer in a database; one database may hold the buffers of many runs."""

from __future__ import annotations

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

LAYOUT = 1
"""Goes up whenever the tables change; a buffer of another layout is refused."""

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
    # The order in which groups came in. SQLite counts by itself only in an INTEGER.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("buffer", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("state", Text, nullable=False),  # queued, claimed, done
    Column("session", Text),  # of the reader that claimed it
    Column("claim", Integer),  # which of the reader's claims
    Column("content", LargeBinary),  # none once it is done
    UniqueConstraint("buffer", "id", name="strop_groups_id"),
    Index("strop_groups_state", "buffer", "state", "number"),
)

members = Table(
    "strop_members",
    metadata,
    Column("buffer", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("session", Text, nullable=False),  # of who opened it last under this name; empty once it left
    Column("writes", Boolean, nullable=False),
    Column("finished", Boolean, nullable=False),
    Column("alive_until", Double, nullable=False),  # seconds since 1970, by the database's clock
)
