"""The real service of Data-Juicer, in its own environment: `make juicer`, or STROP_DATA_JUICER_PYTHON."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from strop.config.schema.buffer import DataJuicerConfig
from strop.config.schema.task_pipeline import DataJuicerTasksConfig
from strop.errors import ConfigError, DataError
from strop.pipelines.juicer.client import PYTHON
from strop.pipelines.juicer.operators import DataJuicer, DataJuicerTasks
from strop.pipelines.tasks.operator import ROW_ID, Parts, write_part
from tests.pipelines.test_experience_pipeline import group

pytestmark = [
    pytest.mark.juicer,
    pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set"),
]
TEXTS = ["one", "one two  three", "one two  three", "a b c d e f g h"]


@pytest.fixture
def rows(tmp_path):
    table = pa.table({"text": TEXTS, ROW_ID: np.arange(len(TEXTS))})
    write_part(tmp_path / "rows.arrow", table)
    return Parts((tmp_path / "rows.arrow",))


def test_filter_mapper_and_deduplicator_on_rows(rows, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "process:\n  - text_length_filter: {min_len: 4, max_len: 14}\n  - document_deduplicator: {}\n"
        "  - whitespace_normalization_mapper: {}\n"
    )
    (result,) = DataJuicerTasks(DataJuicerTasksConfig(config=str(recipe)))(rows)
    assert result.table.column("text").to_pylist() == ["one two  three"]
    assert result.table.column("text_len").to_pylist() == [14]
    assert result.parents.tolist() == [1]
    assert [(each.row, each.reason) for each in result.removals] == [
        (0, "text_length_filter"),
        (2, "document_deduplicator"),
        (3, "text_length_filter"),
    ]


def test_bad_input(rows):
    with pytest.raises(
        ConfigError, match=r"no operator 'text_lenth_filter'; did you mean text_length_filter\?"
    ):
        DataJuicerTasks(DataJuicerTasksConfig(operators=({"text_lenth_filter": {}},)))
    operator = DataJuicerTasks(DataJuicerTasksConfig(operators=({"text_length_filter": {"text_key": "no"}},)))
    with pytest.raises(DataError, match=r"text_length_filter failed: .*have the columns text"):
        list(operator(rows))


def test_rollouts_and_a_service_that_is_killed():
    operator = DataJuicer(DataJuicerConfig(operators=({"text_length_filter": {"min_len": 1}},)))
    found = operator(group(1.0, 0.0, None))
    assert found is not None and [rollout.info for rollout in found.rollouts] == [{"text_len": 1}] * 2
    process = operator._client._process
    assert process is not None
    process._process.kill()
    process._process.wait()
    assert operator(group(1.0, 0.0, None)) == found
    operator._client.close()
