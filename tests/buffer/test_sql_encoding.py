"""A PostgreSQL database in SQL_ASCII, whose strings come as bytes unless the connection has an encoding."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from strop.buffer.factory import open_buffer
from strop.config.schema.buffer import SqlBufferConfig
from strop.data.sources.sql_table import postgresql_url, read_table
from tests.buffer.groups import ids, make_groups
from tests.buffer.postgres import Server


def test_sql_ascii(server: Server, tmp_path: Path) -> None:
    admin = sa.create_engine(postgresql_url(sa.make_url(server.url)), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0"))
    admin.dispose()
    url = server.url.replace("/postgres?", "/plain?")
    section = SqlBufferConfig(url=url, name="grüße")
    buffer = open_buffer(section, tmp_path, role="both")
    buffer.put(make_groups(2))
    assert ids(buffer.take(2)) == ["g0", "g1"]
    buffer.close()
    engine = sa.create_engine(postgresql_url(sa.make_url(url)))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE tasks (id int PRIMARY KEY, question text)"))
        connection.execute(sa.text("INSERT INTO tasks VALUES (1, 'größer?')"))
    engine.dispose()
    assert read_table(url, "tasks")[0] == {"id": 1, "question": "größer?"}
