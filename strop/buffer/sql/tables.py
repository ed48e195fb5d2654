"""The database tables of a buffer; one database may hold the buffers of many runs."""

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
