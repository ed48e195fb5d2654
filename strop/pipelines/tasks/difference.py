"""Differences between the rows before and after a pipeline, and between its operators, as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.sources.reader import read_rows
from strop.pipelines.tasks.execution import (
    PartRunner,
    WorkFolder,
    location,
    named_operators,
    run_dataset_stage,
    stages_of,
)
from strop.pipelines.tasks.operator import (
    DATASET_SHIFT,
    ROW_ID,
    Parts,
    PipelineServices,
    Say,
    as_text,
    part_file,
    write_part,
)
from strop.pipelines.tasks.order import read_tables
from strop.pipelines.tasks.pipeline import PipelineResult, temporary_folder
from strop.pipelines.tasks.registry import OperatorContext, open_replies

_VALUE_CHARS = 100


def describe_difference(train: TasksetConfig, result: PipelineResult, limit: int) -> Iterator[str]:
    """Lines about removed rows, and about rows that were changed or added; at most `limit` of each kind."""
    import datasets

    source = read_rows(train)
    yield from _removed(result, source, limit)
    after = datasets.load_from_disk(str(result.data))
    origins = np.load(result.folder / "origins.npy")
    own = (origins >= 0) & (origins >> DATASET_SHIFT == 0)
    shown = 0
    yield ""
    yield "Rows that were changed:"
    for number in np.flatnonzero(own).tolist():
        if shown == limit:
            break
        before, row = source[int(origins[number])], after[number]
        changes = list(_changes(before, row))
        if changes:
            shown += 1
            yield f"  {source.where(int(origins[number]))}"
            yield from (f"    {line}" for line in changes)
    if not shown:
        yield "  none"
    yield ""
    added = np.flatnonzero(~own)
    yield f"Rows that were added: {len(added)}"
    for number in added[:limit].tolist():
        yield f"  {_short(as_text(after[number]))}"


def _removed(result: PipelineResult, source: Any, limit: int) -> Iterator[str]:
    counts = Counter((each["operator"], each["type"], each["reason"]) for each in result.removed())
    yield f"Rows that were removed: {sum(counts.values())}"
    shown: Counter[tuple[int, str, str]] = Counter()
    for each in result.removed():
        key = (each["operator"], each["type"], each["reason"])
        share = max(1, limit // max(1, len(counts)))
        if limit and shown[key] < share:
            if not shown[key]:
                yield f"  {each['operator']} {each['type']}: {each['reason']} ({counts[key]} rows)"
            shown[key] += 1
            detail = f" ({each['detail']})" if each["detail"] else ""
            own = 0 <= each["id"] < 1 << DATASET_SHIFT
            row = _short(as_text(source[each["id"]])) if own else ""
            yield f"    {each['row']}{detail}: {row}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            yield f"- {name}"
        elif name not in before:
            yield f"+ {name}: {_short(as_text(after[name]))}"
        elif before[name] != after[name]:
            yield f"{name}: {_short(as_text(before[name]))} -> {_short(as_text(after[name]))}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 3]}..."


def preview(data: DataConfig, services: PipelineServices, cache: Any, say: Say, limit: int) -> Iterator[str]:
    """Lines about the first rows before and after each operator. Replies of models are cached."""
    assert data.pipeline is not None
    source = read_rows(data.train)
    sources: list[Callable[[int], str]] = [source.where]
    first = next(read_tables(source, 0, data.train.images), None)
    table = pa.table({}) if first is None else first.slice(0, limit)
    table = table.append_column(ROW_ID, pa.array(np.arange(table.num_rows)))
    yield f"{table.num_rows} of {len(source)} rows"
    yield from _rows(table, sources)
    with open_replies(cache / "replies") as replies, temporary_folder() as folder:
        context = OperatorContext(services, replies, say, sources)
        for number, section in enumerate(data.pipeline.operators):
            (stage,) = stages_of([section])
            before = {row[ROW_ID]: row for row in table.to_pylist()}
            if stage.scope == "dataset":
                write_part(part_file(folder / f"in-{number}", 0), table)
                parts = Parts((part_file(folder / f"in-{number}", 0),))
                done = run_dataset_stage(stage, parts, folder / f"out-{number}", context, lambda rows: None)
                left = list(done.tables())
                removals = list(WorkFolder(folder / f"out-{number}").removals())
                table = pa.concat_tables(left) if left else table.slice(0, 0)
            else:
                table, removals, _ = PartRunner(named_operators(stage, context), sources)(table)
            yield ""
            yield f"after operator {number}, {section.type}: {table.num_rows} rows"
            for removal in removals:
                detail = f" ({removal['detail']})" if removal["detail"] else ""
                yield f"  removed {location(removal['id'], sources)}: {removal['reason']}{detail}"
            yield from _preview_changes(before, table, sources)
            if not table.num_rows and number + 1 < len(data.pipeline.operators):
                yield f"No row is left for operator {number + 1} and later ones; `--rows` takes more."
                return


def _rows(table: pa.Table, sources: Sequence[Callable[[int], str]]) -> Iterator[str]:
    for row in table.to_pylist():
        identity = row.pop(ROW_ID)
        yield f"  {location(identity, sources)}: {_short(as_text(row))}"


def _preview_changes(
    before: Mapping[int, dict[str, Any]], table: pa.Table, sources: Sequence[Callable[[int], str]]
) -> Iterator[str]:
    for row in table.to_pylist():
        old = before.get(row[ROW_ID])
        if old is None:
            yield f"  added: {_short(as_text({k: v for k, v in row.items() if k != ROW_ID}))}"
            continue
        changes = "; ".join(_changes(old, row))
        yield f"  {location(row[ROW_ID], sources)}{': ' + changes if changes else ''}"
