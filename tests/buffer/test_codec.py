"""Groups are encoded as bytes, JSON and Parquet exactly; other content is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from strop.buffer.codec import EXPERIENCE, SCHEMA, decode, encode, from_batch, from_json, to_batch, to_json
from strop.errors import StoreError
from strop.types import Experience, ExperienceGroup, ImageReference, RolloutStatus, SegmentRole
from tests.buffer.groups import assert_same, make_group

INT64 = st.integers(-(2**63), 2**63 - 1)
IMAGES = st.builds(
    ImageReference,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.text("abc/", min_size=1).map(Path),
    st.integers(1, 9999),
    st.integers(1, 9999),
)


@st.composite
def experiences(draw: st.DrawFn) -> Experience:
    length = draw(st.integers(2, 12))
    mask = draw(hnp.arrays(np.bool_, length))
    mask[0], mask[-1] = False, True
    turns = int((np.diff(mask.astype(int)) == 1).sum())
    floats = hnp.arrays(np.float32, length, elements=st.floats(width=32))
    return Experience(
        id=draw(st.text()),
        task_id=draw(st.text()),
        group=draw(st.text()),
        index=draw(INT64),
        turn=draw(INT64),
        token_ids=draw(hnp.arrays(np.int32, length)),
        loss_mask=mask,
        sampler_logprobs=draw(floats),
        policy_logprobs=draw(st.none() | floats),
        reward=draw(st.floats()),
        status=draw(st.sampled_from(get_args(RolloutStatus))),
        temperature=draw(st.floats()),
        versions=tuple(draw(st.lists(INT64, max_size=4))),
        token_versions=draw(st.none() | hnp.arrays(np.int32, length)),
        source=draw(st.text()),
        role=draw(st.sampled_from(get_args(SegmentRole))),
        turn_rewards=draw(st.none() | st.lists(st.floats(), min_size=turns, max_size=turns).map(tuple)),
        turn_states=draw(st.none() | st.lists(st.text(), min_size=turns, max_size=turns).map(tuple)),
        pair=draw(st.none() | st.text()),
        reward_parts=draw(st.dictionaries(st.text(), st.floats(), max_size=3)),
        media=tuple(draw(st.lists(IMAGES, max_size=2))),
    )


groups = st.builds(ExperienceGroup, st.text(), st.lists(experiences(), max_size=3).map(tuple))


def test_every_field_of_an_experience_has_a_column() -> None:
    assert [field.name for field in fields(Experience)] == [field.name for field in EXPERIENCE]


@settings(max_examples=60, deadline=None)
@given(groups)
def test_bytes_and_json_are_decoded_exactly(group: ExperienceGroup) -> None:
    assert_same([decode(encode(group))], [group])
    assert_same([from_json(to_json(group))], [group])
    assert "\n" not in to_json(group)


@settings(max_examples=15, deadline=None)
@given(st.lists(groups, max_size=4))
def test_parquet_is_decoded_exactly(
    tmp_path_factory: pytest.TempPathFactory, several: list[ExperienceGroup]
) -> None:
    file = tmp_path_factory.mktemp("parquet") / "groups.parquet"
    pq.write_table(pa.Table.from_batches([to_batch(several)]), file)
    batches = pq.read_table(file).to_batches()
    assert_same([group for batch in batches for group in from_batch(batch)], several)


def test_slices_of_a_batch_are_the_groups_in_them() -> None:
    several = [make_group(f"g{i}", experiences=i, tokens=4 + i) for i in range(5)]
    assert_same(from_batch(to_batch(several).slice(2, 2)), several[2:4])


def test_arrays_can_be_written_to() -> None:
    array = decode(encode(make_group("a"))).experiences[1].token_ids
    array[0] = 7
    assert array[0] == 7


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", pickle.dumps(make_group("a")), encode(make_group("a"))[:200]]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="These bytes"):
        decode(data)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_another_format_or_other_columns_are_refused() -> None:
    schema = SCHEMA.with_metadata({"strop.groups": "99"})
    later = pa.RecordBatch.from_arrays(to_batch([make_group("a")]).columns, schema=schema)
    with pytest.raises(StoreError, match=r"have format 99, and it reads format 5"):
        decode(_stream(later))
    schema = pa.schema([pa.field("id", pa.string())], metadata=SCHEMA.metadata)
    with pytest.raises(StoreError, match="other columns"):
        decode(_stream(pa.RecordBatch.from_arrays([pa.array(["a"])], schema=schema)))


def _set(**values: object) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["experiences"][0].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("id"), "keys id, experiences"),
        (lambda row: row["experiences"][0].pop("reward"), "keys id, task_id"),
        (_set(surprise=1), "keys id, task_id"),
        (_set(reward="much"), "not a group of experiences"),
        (_set(reward=None), "has no reward"),
        (_set(status="lost"), "status 'lost'"),
        (
            _set(media='{"$tuple": [{"$video": []}]}'),
            r"holds '\$video', which this version of Strop cannot read",
        ),
        (lambda row: row["experiences"][0]["loss_mask"].pop(), "damaged"),
        (lambda row: row.update(experiences=3), "is not a list"),
    ],
)
def test_a_changed_line_is_refused(change: Any, message: str) -> None:
    row = json.loads(to_json(make_group("a")))
    change(row)
    with pytest.raises(StoreError, match=message):
        from_json(json.dumps(row))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"media": (Path("x"),)}, r"holds a pathlib\.[\w.]+, which a buffer cannot store"),
        ({"token_ids": np.zeros(6, np.int64)}, r"Experience a-0\.0: token_ids is int64"),
    ],
    ids=["needs pickle", "another type of array"],
)
def test_values_without_a_column_are_refused(change: dict[str, Any], message: str) -> None:
    group = make_group("a", experiences=1)
    with pytest.raises(StoreError, match=message):
        encode(replace(group, experiences=(replace(group.experiences[0], **change),)))


def test_a_line_from_before_images_is_read() -> None:
    row = json.loads(to_json(make_group("a")))
    assert [experience["media"] for experience in row["experiences"]] == ['{"$tuple": []}'] * 2
    assert_same([from_json(json.dumps(row))], [make_group("a")])
