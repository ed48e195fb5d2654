"""Task operators on small tables, against results worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter, ValidationError

from strop.config.schema.task_pipeline import TaskOperatorConfig, TaskPipelineConfig
from strop.errors import ConfigError, DataError
from strop.pipelines.tasks.execution import histogram
from strop.pipelines.tasks.operator import (
    DatasetOperator,
    Parts,
    Processed,
    RowError,
    TaskOperator,
    part_file,
    write_part,
)
from strop.pipelines.tasks.registry import OPERATORS, OperatorContext, make_operator

SECTION: TypeAdapter[TaskOperatorConfig] = TypeAdapter(TaskOperatorConfig)


def make(**values: Any) -> Any:
    return make_operator(SECTION.validate_python(values), OperatorContext(None, None, print))


def apply(table: dict[str, list[Any]], **values: Any) -> Processed:
    operator: TaskOperator = make(**values)
    return operator(pa.table(table))


def over(folder: Path, tables: list[dict[str, list[Any]]], **values: Any) -> list[dict[str, Any]]:
    """The rows that an operator over the whole dataset gives, and its removals."""
    files = tuple(part_file(folder, number) for number in range(len(tables)))
    first = 0
    for file, values_ in zip(files, tables, strict=True):
        size = len(next(iter(values_.values())))
        write_part(file, pa.table({**values_, "__strop_row__": np.arange(first, first + size)}))
        first += size
    operator: DatasetOperator = make(**values)
    found = list(operator(Parts(files)))
    parents = np.concatenate([each.parents for each in found])
    rows = [row for each in found for row in each.table.to_pylist()]
    assert [row.pop("__strop_row__") for row in rows] == parents.tolist()
    removed = {removal.row for each in found for removal in each.removals}
    assert removed == {*range(first)} - {*parents.tolist()}
    return rows


def test_length_counts_words_and_characters():
    table = {"q": ["one two", "one", "a b c d"]}
    words = apply(table, type="length", column="q", min=2, max=3, output="words")
    assert words.table.to_pydict() == {"q": ["one two"], "words": [2]}
    assert [(each.row, each.reason, each.detail) for each in words.removals] == [
        (1, "words < 2", "1"),
        (2, "words > 3", "4"),
    ]
    assert words.scores["words"].tolist() == [2, 1, 4]
    assert apply(table, type="length", column="q", unit="characters", max=3).table.num_rows == 1


def test_length_joins_messages_and_finds_nested_columns():
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say it"}]
    assert apply({"m": [chat]}, type="length", column="m", min=4, max=4).table.num_rows == 1
    assert apply({"extra": [{"q": "a b"}]}, type="length", column="extra.q", min=3).table.num_rows == 0


def test_null_names_the_row():
    with pytest.raises(RowError, match="has no 'q'") as raised:
        apply({"q": ["a", None]}, type="length", column="q", min=1)
    assert raised.value.row == 1


def test_range_and_values():
    table = {"n": [1, 5, None], "s": ["a", "b", "a"]}
    kept = apply(table, type="range", column="n", max=4, missing="drop")
    assert kept.table["n"].to_pylist() == [1]
    assert [each.reason for each in kept.removals] == ["n > 4", "no n"]
    assert apply(table, type="range", column="s", values=["a"]).table["n"].to_pylist() == [1, None]
    with pytest.raises(RowError, match="missing: keep or drop"):
        apply(table, type="range", column="n", max=4)
    with pytest.raises(RowError, match="not a number"):
        apply(table, type="range", column="s", max=4)


def test_template_writes_columns():
    found = apply({"q": ["2+2"], "a": ["4"]}, type="template", columns={"p": "Q: {{ q }}\n", "a": "{{ a }}!"})
    assert found.table.to_pydict() == {"q": ["2+2"], "a": ["4!"], "p": ["Q: 2+2\n"]}
    assert make(type="template", columns={"p": "{{ q }}{{ x.y }}"}).reads == ("q", "x")
    with pytest.raises(RowError, match="'q' is undefined"):
        apply({"a": ["4"]}, type="template", columns={"p": "{{ q }}"})
    with pytest.raises(ConfigError, match="not a Jinja template"):
        _ = make(type="template", columns={"p": "{{ q"}).reads


def test_language_of_rows():
    pytest.importorskip("py3langid")
    table = {"q": ["The cat sits on the table and sleeps.", "Le chat est assis sur la table et dort."]}
    found = apply(table, type="language", column="q", languages=["fr"], output="lang")
    assert found.table["lang"].to_pylist() == ["fr"]
    assert [(each.reason, each.detail) for each in found.removals] == [("language is not fr", "en")]


def test_exact_duplicates_over_parts(tmp_path):
    tables = [{"q": ["A  b", "c"]}, {"q": ["a b", "C ", "d"]}]
    rows = over(tmp_path, tables, type="deduplicate", columns=["q"])
    assert [row["q"] for row in rows] == ["A  b", "c", "d"]
    rows = over(tmp_path, [{"q": ["A b", "a b", "a b"]}], type="deduplicate", columns=["q"], normalize=False)
    assert [row["q"] for row in rows] == ["A b", "a b"]


def test_minhash_finds_what_the_jaccard_similarity_finds(tmp_path):
    pytest.importorskip("datasketch")
    words = [f"w{number}" for number in range(40)]
    close = [*words[:39], "other"]  # 3-grams: 37 shared of 39 -> 0.95
    far = [*words[:10], *(f"x{number}" for number in range(30))]
    texts = [" ".join(each) for each in (words, close, far)]
    similar = {"type": "deduplicate", "method": "minhash", "ngram_words": 3, "similarity": 0.7}
    rows = over(tmp_path, [{"q": texts[:1]}, {"q": texts[1:]}], columns=["q"], **similar)
    assert [row["q"] for row in rows] == [texts[0], texts[2]]


def test_sample_is_repeatable_and_follows_weights(tmp_path):
    table = {"n": list(range(100)), "w": [1.0 if number < 10 else 0.0 for number in range(100)]}
    one = over(tmp_path, [table], type="sample", count=20, seed=1)
    assert one == over(tmp_path, [table], type="sample", count=20, seed=1)
    assert one != over(tmp_path, [table], type="sample", count=20, seed=2)
    assert [row["n"] for row in one] == sorted(row["n"] for row in one) and len(one) == 20
    weighted = over(tmp_path, [table], type="sample", fraction=0.1, weight="w")
    assert [row["n"] for row in weighted] == list(range(10))
    with pytest.raises(DataError, match="10 of 100 rows have a 'w' above 0, fewer than the 11 rows"):
        over(tmp_path, [table], type="sample", count=11, weight="w")


def test_order_by_columns_weights_and_folds(tmp_path):
    tables = [{"a": [3, 1], "b": ["x", "y"]}, {"a": [2, 1], "b": ["z", "a"]}]
    ordered = over(tmp_path, tables, type="order", by=["a", "b"])
    assert [(row["a"], row["b"]) for row in ordered] == [(1, "a"), (1, "y"), (2, "z"), (3, "x")]
    down = over(tmp_path, tables, type="order", by=["a"], descending=True, limit=3)
    assert [row["b"] for row in down] == ["x", "z", "y"]
    tables = [{"quality": [0.1, 0.9, 0.5], "difficulty": [0.0, 1.0, 0.2]}]
    weighted = over(tmp_path, tables, type="order", weights={"quality": 1.0, "difficulty": -0.7})
    assert [row["quality"] for row in weighted] == [0.5, 0.9, 0.1]
    assert [row["priority"] for row in weighted] == pytest.approx([0.36, 0.2, 0.1])
    folded = over(tmp_path, [{"a": [0, 1, 2, 3, 4, 5, 6]}], type="order", by=["a"], folds=3)
    assert [row["a"] for row in folded] == [0, 3, 6, 1, 4, 2, 5]


def test_mix_adds_rows_of_another_dataset(tmp_path):
    (tmp_path / "other.jsonl").write_text('{"text": "x"}\n{"text": "y"}\n{"text": "z"}\n')
    files = (part_file(tmp_path, 0),)
    write_part(files[0], pa.table({"q": ["a", "b"], "__strop_row__": [0, 1]}))
    inputs = [{"path": str(tmp_path / "other.jsonl"), "columns": {"text": "q"}, "count": 2}]
    operator: DatasetOperator = make(type="mix", inputs=inputs, output="of", seed=3)
    (found,) = operator(Parts(files))
    rows = found.table.to_pylist()
    assert sorted(row["q"] for row in rows if row["of"] == 0) == ["a", "b"]
    assert len({row["q"] for row in rows if row["of"] == 1} & {"x", "y", "z"}) == 2
    assert [row["__strop_row__"] if row["of"] == 0 else -1 for row in rows] == found.parents.tolist()


def test_custom_class_keeps_changes_and_adds_rows(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Longer:\n"
        "    adds = ('n',)\n"
        "    def __init__(self, least): self.least = least\n"
        "    def __call__(self, rows):\n"
        "        kept = [dict(row, n=len(row['q'])) for row in rows if len(row['q']) >= self.least]\n"
        "        return kept + [{'q': 'new', 'n': 0}]\n"
        "class Bad:\n"
        "    def __call__(self, rows): return rows[0]['missing']\n"
    )
    table = pa.table({"q": ["a", "bcd"], "__strop_row__": [7, 8]})
    found = make(type="custom", operator=f"{tmp_path / 'mine.py'}:Longer", args={"least": 2})(table)
    assert found.table.to_pylist() == [
        {"q": "bcd", "__strop_row__": 8, "n": 3},
        {"q": "new", "__strop_row__": -1, "n": 0},
    ]
    assert found.parents.tolist() == [1, -1] and [each.row for each in found.removals] == [0]
    with pytest.raises(DataError, match="KeyError"):
        make(type="custom", operator=f"{tmp_path / 'mine.py'}:Bad")(table)


def test_every_section_has_an_operator():
    union = TaskPipelineConfig.model_json_schema()["properties"]["operators"]["items"]["discriminator"]
    assert set(union["mapping"]) == {section.model_fields["type"].default for section in OPERATORS}


LENGTH = {"type": "length", "column": "q", "min": 1}


@pytest.mark.parametrize(
    ("operator", "section", "message"),
    [
        ({"type": "sample"}, {}, "count or fraction"),
        ({**LENGTH, "min": 5, "max": 2}, {}, "no row would be kept"),
        ({"type": "range", "column": "q"}, {}, "one condition"),
        ({"type": "deduplicate", "columns": ["q"], "similarity": 0.5}, {}, "method: minhash"),
        ({"type": "order", "by": ["a"], "weights": {"b": 1}}, {}, "one of them"),
        ({"type": "pass_rate", "rollouts_per_task": 1, "min_reward_std": 0.1}, {}, "two rollouts_per_task"),
        # Targets that nothing can be written to
        (LENGTH, {"export": "sqlite:///tasks.db"}, "export_table: tasks"),
        (LENGTH, {"export": "tasks.csv"}, "neither a file"),
        (LENGTH, {"export": "tasks.jsonl", "export_table": "tasks"}, "needs a database"),
        (LENGTH, {"export_table": "tasks"}, "needs a database"),
    ],
)
def test_settings_that_contradict_each_other(operator, section, message):
    with pytest.raises(ValidationError, match=message):
        TaskPipelineConfig.model_validate({"operators": [operator], **section})


def test_histogram_counts_every_finite_value():
    found = histogram(np.array([0.0, 1.0, 1.0, np.nan, np.inf]))
    assert found["count"] == 3 and sum(found["counts"]) == 3 and found["counts"][-1] == 2
    assert histogram(np.array([np.nan])) == {}
    constant = histogram(np.array([0.25, 0.25]))
    assert (constant["counts"], constant["edges"]) == ([2], [0.25, 0.25])
