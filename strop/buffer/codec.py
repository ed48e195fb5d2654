"""Groups of experiences as an Arrow table, a row each; from there bytes, JSON or Parquet. Never pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strop.buffer import plain
from strop.errors import StoreError
from strop.types import Experience, ExperienceGroup, Role, Status

FORMAT = 2
"""Goes up whenever the columns change; other formats are refused."""

EXPERIENCE = pa.struct(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("turn", pa.int64(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
        pa.field("sampler_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("policy_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("versions", pa.list_(pa.int64()), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("turn_rewards", pa.list_(pa.float64())),
        pa.field("pair", pa.string()),
        pa.field("media", pa.string(), nullable=False),
    ]
)
"""One experience; `media` is JSON text (see `plain`)."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("experiences", pa.list_(pa.field("item", EXPERIENCE, nullable=False)), nullable=False),
        pa.field("baseline", pa.float64()),
    ],
    metadata={"strop.groups": str(FORMAT)},
)
_TOKENS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "loss_mask": np.bool_,
    "sampler_logprobs": np.float32,
    "policy_logprobs": np.float32,
}
"""The columns that are arrays [L]."""
_TUPLES = ("versions", "turn_rewards")


def encode(group: ExperienceGroup) -> bytes:
    """One group as an Arrow IPC stream. Raises `StoreError` for what no column can hold."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(to_batch([group]))
    return bytes(sink.getvalue())


def decode(data: bytes) -> ExperienceGroup:
    """Exactly the group that `encode` was given. Raises `StoreError` for anything else."""
    try:
        with pa.ipc.open_stream(data) as reader:
            check_schema(reader.schema, "These bytes")
            groups = from_batch(reader.read_next_batch())
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise StoreError(f"These bytes are no group of experiences: {error}.") from error
    if len(groups) != 1:
        raise StoreError(f"These bytes hold {len(groups)} groups of experiences, not one.")
    return groups[0]


def to_json(group: ExperienceGroup) -> str:
    """One group as a line of JSON, with the names of the columns."""
    return json.dumps(to_batch([group]).to_pylist()[0], ensure_ascii=False)


def from_json(line: str) -> ExperienceGroup:
    """Exactly the group that `to_json` was given. Raises `StoreError` for anything else."""
    try:
        return from_row(json.loads(line))
    except json.JSONDecodeError as error:
        raise StoreError(f"This line is no JSON: {error}.") from error


def from_row(row: Any) -> ExperienceGroup:
    """A group from the JSON object that `to_json` writes. Raises `StoreError` for anything else."""
    _check_keys(row, SCHEMA.names, "A group")
    if not isinstance(row["experiences"], list):
        raise StoreError("A group's `experiences` is no list.")
    for experience in row["experiences"]:
        _check_keys(experience, [field.name for field in EXPERIENCE], "An experience")
    try:
        return from_batch(pa.RecordBatch.from_pylist([row], schema=SCHEMA))[0]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"This row is no group of experiences: {error}.") from error


def check_schema(schema: pa.Schema, what: str) -> None:
    """Raises `StoreError` unless the schema is the one that this version writes."""
    written = (schema.metadata or {}).get(b"strop.groups", b"").decode()
    if written != str(FORMAT):
        found = f"are in format {written}" if written else "say no format"
        raise StoreError(
            f"{what} are no experiences that this version of Strop reads: they {found}, and it reads format "
            f"{FORMAT}. Read them with the version that wrote them."
        )
    if not schema.equals(SCHEMA):
        raise StoreError(f"{what} say format {FORMAT} but have other columns:\n{schema}")


def to_batch(groups: Sequence[ExperienceGroup]) -> pa.RecordBatch:
    """Groups as Arrow, a row each. Raises `StoreError` for what no column can hold."""
    rows = [experience for group in groups for experience in group.experiences]
    try:
        columns = [_column(field, rows) for field in EXPERIENCE]
        experiences = pa.StructArray.from_arrays(columns, fields=list(EXPERIENCE))
        lists = pa.ListArray.from_arrays(
            _offsets([len(group.experiences) for group in groups]),
            experiences,
            type=SCHEMA.field("experiences").type,
        )
        ids = pa.array([group.id for group in groups], pa.string())
        baselines = pa.array([group.baseline for group in groups], pa.float64())
    except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError) as error:
        raise StoreError(f"A group of experiences cannot be stored: {error}.") from error
    return pa.RecordBatch.from_arrays([ids, lists, baselines], schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> list[ExperienceGroup]:
    """Exactly the groups that `to_batch` was given."""
    lists = batch.column("experiences")
    structs = lists.values
    values = {field.name: _values(field, structs.field(field.name)) for field in EXPERIENCE}
    try:
        rows = [
            Experience(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)
        ]
    except ValueError as error:
        raise StoreError(f"A stored group is damaged: {error}.") from error
    bounds = pairwise(lists.offsets.to_pylist())
    ids, baselines = batch.column("id").to_pylist(), batch.column("baseline").to_pylist()
    return [
        ExperienceGroup(id, tuple(rows[start:end]), baseline)
        for id, baseline, (start, end) in zip(ids, baselines, bounds, strict=True)
    ]


def _column(field: pa.Field, rows: Sequence[Experience]) -> pa.Array:
    values = [getattr(row, field.name) for row in rows]
    if field.name == "media":
        return pa.array([plain.to_text(value) for value in values], field.type)
    if field.name not in _TOKENS:
        return pa.array(values, field.type)
    dtype = np.dtype(_TOKENS[field.name])
    for row, value in zip(rows, values, strict=True):
        if value.dtype != dtype or value.ndim != 1:
            raise StoreError(
                f"Experience {row.id}: {field.name} is {value.dtype} with {value.ndim} dimensions; "
                f"it must be {dtype} with one."
            )
    joined = np.concatenate(values) if values else np.empty(0, dtype)
    return pa.ListArray.from_arrays(_offsets([len(v) for v in values]), pa.array(joined), type=field.type)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _values(field: pa.Field, column: pa.Array) -> list[Any]:
    if column.null_count and not field.nullable:
        raise StoreError(f"A stored experience has no {field.name}.")
    if field.name in _TOKENS:
        return _arrays(column)
    values = column.to_pylist()
    if field.name in _TUPLES:
        return [None if value is None else tuple(value) for value in values]
    if field.name == "media":
        return [plain.from_text(value) for value in values]
    known = {"status": get_args(Status), "role": get_args(Role)}.get(field.name)
    if known and not set(values) <= set(known):
        raise StoreError(f"A stored experience has the {field.name} {(set(values) - set(known)).pop()!r}.")
    return values


def _arrays(column: pa.ListArray) -> list[npt.NDArray[Any]]:
    """Each row's array; all of them share one block of memory, as a group is one thing."""
    values = column.values.to_numpy(zero_copy_only=False).copy()
    return [values[start:end] for start, end in pairwise(column.offsets.to_pylist())]


def _check_keys(row: Any, names: Sequence[str], what: str) -> None:
    if not isinstance(row, Mapping) or row.keys() != set(names):
        raise StoreError(f"{what} is a JSON object with the keys {', '.join(names)}.")
