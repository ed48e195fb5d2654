"""Damage to one file, by its kind: values, structure, text and bytes, all from a seed."""

from __future__ import annotations

import copy
import io
import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.compat.broken_configs import SCRAWLS
from tests.fuzz.configurations import BYTE_CHANGES, TEXT_CHANGES, VALUES, change_values

_TEMPLATES = (
    *(
        "{% for %}",
        "{{",
        "}}",
        "{%",
        "{% endfor %}",
        "{% if x %}",
        "{{ x.y.z }}",
        "{{ 1/0 }}",
        "{{ messages[99] }}",
    ),
    *(
        "{{ 9**9**9 }}",
        "{{ 'a' * 10**12 }}",
        "{% for i in range(10**12) %}x{% endfor %}",
        "{{ messages | tojson }}",
    ),
    *("{% set ns = namespace(x='a') %}{% for i in range(31) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",),
    *(
        "{{ raise_exception('no') }}",
        "{% include 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ),
    *(
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ none.x() }}",
        "\0",
        "\ud800",
    ),
)


def damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    """The content of a file of that name with one to four changes."""
    kind = name.rpartition(".")[2]
    if rng.random() < 0.75 and kind in _STRUCTURES:
        content = _STRUCTURES[kind](content, rng)
    elif kind in _BINARY:
        content = _damaged_bytes(content, rng)
    else:
        content = _damaged_text(content, rng)
    return _damaged_bytes(content, rng) if rng.random() < 0.08 else content


def changed(values: Any, rng: random.Random) -> Any:
    """A copy of nested values with one to three changes."""
    holder = {"values": copy.deepcopy(values)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        change_values(holder["values"] if isinstance(holder["values"], dict) else holder, rng, "strop")
    return holder.get("values") if rng.random() < 0.97 else copy.deepcopy(rng.choice(VALUES))


def _damaged_text(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 1, 2))):
        text = rng.choice((*SCRAWLS, *TEXT_CHANGES))(text, rng)
    return text.encode("utf-8", "surrogatepass")


def _damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bytes that are changed anywhere, or near an end, where binary formats have their lengths and offsets."""
    cuts = (0, 1, len(content) // 2, max(0, len(content) - 1), rng.randrange(len(content) + 1))
    at = rng.choice(
        (rng.randrange(64), len(content) - 1 - rng.randrange(64), rng.randrange(len(content) + 1))
    )
    at = min(max(at, 0), max(len(content) - 1, 0))
    huge = struct.pack("<Q", rng.choice((2**64 - 1, 2**63, 2**32, 2**31 - 1, 10**12, 0)))
    return rng.choice(
        (
            lambda: rng.choice(BYTE_CHANGES)(content, rng),
            lambda: content[: rng.choice(cuts)],
            lambda: content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
            lambda: content[:at] + huge[: rng.choice((4, 8))] + content[at + 8 :],
            lambda: content[:at] + content[at + 1 :],
            lambda: rng.randbytes(rng.randrange(200)),
        )
    )()


def _json(content: bytes, rng: random.Random) -> bytes:
    return json.dumps(changed(json.loads(content), rng)).encode()


def _yaml(content: bytes, rng: random.Random) -> bytes:
    return yaml.safe_dump(changed(yaml.safe_load(content), rng), allow_unicode=True).encode(
        "utf-8", "surrogatepass"
    )


def _json_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = _json(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def _template(content: bytes, rng: random.Random) -> bytes:
    text = content.decode()
    at = rng.randrange(len(text) + 1)
    if rng.random() < 0.3:
        return (text[:at] + text[at + rng.randrange(20) :]).encode()
    return (text[:at] + rng.choice(_TEMPLATES) + text[at:]).encode("utf-8", "surrogatepass")


def _csv(content: bytes, rng: random.Random) -> bytes:
    text = content.decode()
    at = rng.randrange(len(text) + 1)
    piece = rng.choice(
        ('"', ",", "\n", "\r", "\0", "\ud800", '""', ";", "\t", "x" * 200_000, ",,,,", '"\n' * 50)
    )
    return (text[:at] + piece + text[at:]).encode("utf-8", "surrogatepass")


def _safetensors(content: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    if rng.random() < 0.3:
        at = rng.randrange(len(data) // 4) * 4
        data[at : at + 4] = struct.pack("<f", rng.choice((float("nan"), float("inf"), -float("inf"))))
    else:
        header = changed(header, rng)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _table(content: bytes, rng: random.Random) -> pa.Table:
    """Rows with changed values; columns whose values do not fit together become text."""
    buffer = io.BytesIO(content)
    table = pq.read_table(buffer) if content[:4] == b"PAR1" else pa.ipc.open_stream(buffer).read_all()
    rows = table.to_pylist()
    at = rng.randrange(len(rows))
    row = changed(rows[at], rng)
    rows[at] = row if isinstance(row, dict) else {"x": row}
    names = list(dict.fromkeys(str(name) for each in rows for name in each))
    columns = {}
    for name in names:
        values = [each.get(name) for each in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            columns[name] = pa.array([repr(value) for value in values])
    return pa.table(columns)


def _parquet(content: bytes, rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    try:
        pq.write_table(_table(content, rng), buffer)
    except pa.ArrowException:  # a structure without fields
        return content
    return buffer.getvalue()


def _arrow(content: bytes, rng: random.Random) -> bytes:
    table, buffer = _table(content, rng), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


_BINARY = ("parquet", "arrow", "safetensors", "gguf", "png", "db")
_STRUCTURES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "json": _json,
    "yaml": _yaml,
    "jsonl": _json_lines,
    "jinja": _template,
    "csv": _csv,
    "safetensors": _safetensors,
    "parquet": _parquet,
    "arrow": _arrow,
}
"""Changes of what a file says, by its suffix."""
