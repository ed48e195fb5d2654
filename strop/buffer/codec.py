"""Encoding of groups of experiences as Arrow tables, one row per group, and as bytes, JSON or Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strop.errors import StoreError
from strop.types import Experience, ExperienceGroup, ImageReference, RolloutStatus, SegmentRole
from strop.workers.json_text import parse_json

FORMAT = 5
"""Version of the columns, increased whenever they change; other versions are refused."""
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
        pa.field("policy_logprobs", pa.list_(pa.float32())),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("versions", pa.list_(pa.int64()), nullable=False),
        pa.field("token_versions", pa.list_(pa.int32())),
        pa.field("source", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("turn_rewards", pa.list_(pa.float64())),
        pa.field("turn_states", pa.list_(pa.string())),
        pa.field("reward_parts", pa.string(), nullable=False),
        pa.field("pair", pa.string()),
        pa.field("media", pa.string(), nullable=False),
    ]
)
"""One experience; `reward_parts` and `media` are JSON text, see `json_codec`."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("experiences", pa.list_(pa.field("item", EXPERIENCE, nullable=False)), nullable=False),
        pa.field("baseline", pa.float64()),
    ],
    metadata={"strop.groups": str(FORMAT)},
)
_TOKEN_ARRAYS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "loss_mask": np.bool_,
    "sampler_logprobs": np.float32,
    "policy_logprobs": np.float32,
    "token_versions": np.int32,
}
"""Columns that are arrays [L], with their dtypes."""
_JSON = ("reward_parts", "media")
_TUPLES = ("versions", "turn_rewards", "turn_states")


def dumps(value: Any) -> str:
    """Encode a value as JSON; a type that JSON lacks becomes an object with one key that begins with `$`.

    Raises `StoreError` for instances of other classes, because Strop never pickles experiences.
    """
    return json.dumps(_to_json(value))


def loads(text: str) -> Any:
    """Decode exactly the value that `dumps` encoded."""
    return _from_json(parse_json(text))


def _to_json(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is tuple:
        return {"$tuple": [_to_json(item) for item in value]}
    if type(value) is dict:
        return {"$dict": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if type(value) is ImageReference:
        return {"$image": [value.digest, str(value.path), value.width, value.height]}
    raise StoreError(
        f"An experience holds a {type(value).__module__}.{type(value).__qualname__}, which a buffer cannot "
        "store: it stores reward parts, which are numbers by name, and references to images in the run's folder."
    )


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    match kind:
        case "$tuple":
            return tuple(_from_json(item) for item in content)
        case "$dict":
            return {_from_json(key): _from_json(item) for key, item in content}
        case "$image":
            digest, path, width, height = content
            return ImageReference(digest, Path(path), width, height)
    raise StoreError(
        f"A stored experience holds {kind!r}, which this version of Strop cannot read. Read it with "
        "the version that wrote it."
    )


def encode(group: ExperienceGroup) -> bytes:
    """Encode a group as an Arrow IPC stream. Raises `StoreError` for a value that its column cannot hold."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(to_batch([group]))
    return bytes(sink.getvalue())


def decode(data: bytes) -> ExperienceGroup:
    """Decode exactly the group that `encode` encoded. Raises `StoreError` for other bytes."""
    try:
        with pa.ipc.open_stream(data) as reader:
            check_schema(reader.schema, "These bytes")
            groups = from_batch(reader.read_next_batch())
    except (pa.ArrowException, OSError, StopIteration, TypeError) as error:
        raise StoreError(f"These bytes are not a group of experiences: {error}.") from error
    if len(groups) != 1:
        raise StoreError(f"These bytes hold {len(groups)} groups of experiences, not one.")
    return groups[0]


def to_json(group: ExperienceGroup) -> str:
    """Encode a group as one line of JSON, with the columns' names as keys."""
    return json.dumps(to_batch([group]).to_pylist()[0], ensure_ascii=False)


def from_json(line: str) -> ExperienceGroup:
    """Decode exactly the group that `to_json` encoded. Raises `StoreError` for another line."""
    try:
        return from_row(parse_json(line))
    except ValueError as error:
        raise StoreError(f"This line is not JSON: {error}.") from error


def from_row(row: Any) -> ExperienceGroup:
    """Decode a group from a parsed JSON object of `to_json`. Raises `StoreError` for another object."""
    _check_keys(row, SCHEMA.names, "A group")
    if not isinstance(row["experiences"], list):
        raise StoreError("A group's `experiences` is not a list.")
    for experience in row["experiences"]:
        _check_keys(experience, [field.name for field in EXPERIENCE], "An experience")
    try:
        return from_batch(pa.RecordBatch.from_pylist([row], schema=SCHEMA))[0]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"This row is not a group of experiences: {error}.") from error


def check_schema(schema: pa.Schema, what: str) -> None:
    """Raise `StoreError` unless the schema is the one that this version of Strop writes."""
    written = (schema.metadata or {}).get(b"strop.groups", b"").decode()
    if written != str(FORMAT):
        found = f"have format {written}" if written else "name no format"
        raise StoreError(
            f"{what} are not experiences that this version of Strop reads: they {found}, and it reads format "
            f"{FORMAT}. Read them with the version that wrote them."
        )
    if not schema.equals(SCHEMA):
        # A damaged name is no text by itself, but Arrow prints the schema.
        raise StoreError(f"{what} have format {FORMAT} but other columns: {' '.join(str(schema).split())}")


def to_batch(groups: Sequence[ExperienceGroup]) -> pa.RecordBatch:
    """Encode groups as an Arrow batch. Raises `StoreError` for a value that its column cannot hold."""
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
    """Decode exactly the groups that `to_batch` encoded. Raises `StoreError` for other values."""
    try:
        batch.validate(full=True)  # offsets beyond the end of damaged bytes would end the process
        lists = batch.column("experiences")
        structs = lists.values
        values = {field.name: _values(field, structs.field(field.name)) for field in EXPERIENCE}
        rows = [
            Experience(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)
        ]
        bounds = pairwise(lists.offsets.to_pylist())
        ids, baselines = batch.column("id").to_pylist(), batch.column("baseline").to_pylist()
        return [
            ExperienceGroup(id, tuple(rows[start:end]), baseline)
            for id, baseline, (start, end) in zip(ids, baselines, bounds, strict=True)
        ]
    except (ValueError, TypeError) as error:
        raise StoreError(f"A stored group is damaged: {error}.") from error


def _column(field: pa.Field, rows: Sequence[Experience]) -> pa.Array:
    values = [getattr(row, field.name) for row in rows]
    if field.name in _JSON:
        return pa.array([dumps(value) for value in values], field.type)
    if field.name not in _TOKEN_ARRAYS:
        return pa.array(values, field.type)
    dtype = np.dtype(_TOKEN_ARRAYS[field.name])
    for row, value in zip(rows, values, strict=True):
        if value is None and field.nullable:
            continue
        if value.dtype != dtype or value.ndim != 1:
            raise StoreError(
                f"Experience {row.id}: {field.name} is {value.dtype} with {value.ndim} dimensions; "
                f"it must be {dtype} with one."
            )
    given = [value for value in values if value is not None]
    joined = np.concatenate(given) if given else np.empty(0, dtype)
    offsets = _offsets([0 if v is None else len(v) for v in values])
    nulls = pa.array([v is None for v in values], pa.bool_()) if field.nullable else None
    return pa.ListArray.from_arrays(offsets, pa.array(joined), type=field.type, mask=nulls)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _values(field: pa.Field, column: pa.Array) -> list[Any]:
    if column.null_count and not field.nullable:
        raise StoreError(f"A stored experience has no {field.name}.")
    if field.name in _TOKEN_ARRAYS:
        return _arrays(column)
    values = column.to_pylist()
    if field.name in _TUPLES:
        return [None if value is None else tuple(value) for value in values]
    if field.name in _JSON:
        return [loads(value) for value in values]
    known = {"status": get_args(RolloutStatus), "role": get_args(SegmentRole)}.get(field.name)
    if known and not set(values) <= set(known):
        raise StoreError(f"A stored experience has the {field.name} {(set(values) - set(known)).pop()!r}.")
    return values


def _arrays(column: pa.ListArray) -> list[npt.NDArray[Any] | None]:
    """The array of each row, or None; all share one block of memory, since groups are stored and freed
    together."""
    values = column.values.to_numpy(zero_copy_only=False).copy()
    bounds = pairwise(column.offsets.to_pylist())
    given = column.is_valid().to_pylist()
    return [
        values[start:end] if is_given else None for is_given, (start, end) in zip(given, bounds, strict=True)
    ]


def _check_keys(row: Any, names: Sequence[str], what: str) -> None:
    if not isinstance(row, Mapping) or row.keys() != set(names):
        raise StoreError(f"{what} must be a JSON object with the keys {', '.join(names)}.")
