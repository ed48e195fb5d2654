"""Whole task pipelines on files: cache, resume, locations of faults, replies of a language model, export."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from strop.config.schema.data import DataConfig
from strop.config.schema.task_pipeline import PassRateConfig
from strop.data.sources.reader import read_rows
from strop.errors import DataError
from strop.pipelines.tasks import order
from strop.pipelines.tasks.difference import describe_difference, preview
from strop.pipelines.tasks.operator import Rewards
from strop.pipelines.tasks.pipeline import PipelineResult, PipelineRun, pipeline_fingerprint
from tests.rewards.judge_server import judge_server, says

DEDUPLICATE = {"type": "deduplicate", "columns": ["q"]}
LONG = {"type": "length", "column": "q", "min": 2, "output": "words"}


class Services:
    """Services without a model: rewards are the row's own."""

    def __init__(self) -> None:
        self.sampled = 0

    def rewards(self, section: PassRateConfig, table: pa.Table, numbers: Sequence[int]) -> list[Rewards]:
        self.sampled += table.num_rows
        return [
            Rewards(tuple(row["r"])) if row["r"] else Rewards((), 0, "too long") for row in table.to_pylist()
        ]

    def model_fingerprint(self, path: str | None) -> str:
        return "model"

    def rollout_fingerprint(self) -> str:
        return "rollout"


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(
    folder: Path, file: Path, *operators: dict[str, Any], services: Any = None, **more: Any
) -> PipelineResult:
    said: list[str] = []
    given: Any = services or Services()
    pipeline = {"operators": operators, **more}
    data = DataConfig.model_validate({"train": {"path": str(file), "prompt": "q"}, "pipeline": pipeline})
    return PipelineRun(data, folder / "cache", given, lambda text, total: lambda rows: None, said.append)()


def rows_of(result: PipelineResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = datasets.load_from_disk(str(result.data)).to_list()
    return rows


def test_result_is_cached_by_input_and_operators(tmp_path):
    file = write(tmp_path, [{"q": "a b"}, {"q": "A b"}, {"q": "c"}, {"q": "d e f", "x": 1}])
    result = run(tmp_path, file, LONG, DEDUPLICATE)
    assert rows_of(result) == [{"q": "a b", "x": None, "words": 2}, {"q": "d e f", "x": 1, "words": 3}]
    assert [(each["row"][-6:], each["reason"], each["detail"][-9:]) for each in result.removed()] == [
        ("line 3", "words < 2", "1"),
        ("line 2", "exact duplicate", "nl line 1"),
    ]
    assert [(each["rows_in"], each["rows_out"]) for each in result.manifest["operators"]] == [(4, 3), (3, 2)]
    assert np.load(result.folder / "origins.npy").tolist() == [0, 3]
    written = (result.folder / "manifest.json").stat().st_mtime_ns
    again = run(tmp_path, file, LONG, DEDUPLICATE)
    assert again.folder == result.folder and (again.folder / "manifest.json").stat().st_mtime_ns == written
    assert run(tmp_path, file, LONG).folder != result.folder
    file.write_text(file.read_text() + '{"q": "g h"}\n')
    assert run(tmp_path, file, LONG, DEDUPLICATE).rows == 3
    assert str(result).startswith("data.pipeline: 4 rows -> 2 (length -1, deduplicate -1)")


def test_fingerprint_has_the_users_module_and_the_address_of_the_model(tmp_path, monkeypatch):
    file, module = write(tmp_path, [{"q": "a"}]), tmp_path / "strop_test_operators" / "mine.py"
    module.parent.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    def fingerprint(**operator: Any) -> str:
        pipeline = {"operators": [operator]}
        data = DataConfig.model_validate({"train": {"path": str(file)}, "pipeline": pipeline})
        return pipeline_fingerprint(data, read_rows(data.train), Services())  # type: ignore[arg-type]

    custom = {"type": "custom", "operator": "strop_test_operators.mine.Mine"}
    module.write_text("class Mine: ...\n")
    first = fingerprint(**custom)
    module.write_text("class Mine: x = 1\n")
    assert fingerprint(**custom) != first
    mapped = {"type": "llm_map", "model": {"model": "m"}, "prompt": "{{ q }}", "output": "p"}
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    first = fingerprint(**mapped)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:2/v1")
    assert fingerprint(**mapped) != first


def test_rows_without_nested_keys_share_a_schema(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "ROWS_PER_PART", 1)
    file = write(tmp_path, [{"q": "a b"}, {"q": "c d", "y": 1.5}, {"q": "e f", "y": 2}])
    assert [row["y"] for row in rows_of(run(tmp_path, file, DEDUPLICATE))] == [None, 1.5, 2.0]


def test_interrupted_pipeline_continues_with_the_next_part(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "ROWS_PER_PART", 2)
    file = write(tmp_path, [{"q": f"a {n}", "n": n} for n in range(6)])
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "class Fails:\n"
        "    def __init__(self, log): self.log = Path(log)\n"
        "    def __call__(self, rows):\n"
        "        with self.log.open('a') as log: log.write(f\"{rows[0]['n']} \")\n"
        "        if rows[0]['n'] == 4 and not self.log.with_suffix('.ok').exists(): raise ValueError('stop')\n"
        "        return rows\n"
    )
    log = tmp_path / "log.txt"
    custom = {"type": "custom", "operator": f"{tmp_path / 'mine.py'}:Fails", "args": {"log": str(log)}}
    with pytest.raises(DataError, match=r"operators\.0 \(custom\): it raised ValueError: stop"):
        run(tmp_path, file, custom)
    log.with_suffix(".ok").touch()
    assert [row["n"] for row in rows_of(run(tmp_path, file, custom))] == list(range(6))
    assert log.read_text().split() == ["0", "2", "4", "4"]
    assert not list((tmp_path / "cache").glob("*.work"))


ABSENT = {"type": "length", "column": "p", "min": 1}
NINE = {"type": "length", "column": "q", "min": 9}
BY_Q = {"type": "order", "by": ["q"]}
NULL = ["a b", None, "c d"]


@pytest.mark.parametrize(
    ("values", "operators", "message"),
    [
        (
            NULL,
            [DEDUPLICATE, ABSENT],
            r"operators\.1 \(length\): .*rows\.jsonl line 1: there is no column 'p'",
        ),
        (NULL, [LONG], r"operators\.0 \(length\): .*rows\.jsonl line 2: has no 'q'"),
        (NULL, [BY_Q], r"operators\.0 \(order\): .*line 2: has no 'q'"),
        (["a", 3], [LONG], r"line 1 to .* line 2: the column 'q' has values of different types"),
        (
            ["a b", "c"],
            [DEDUPLICATE, NINE, BY_Q],
            r"operators\.1 \(length\) removes all of the 2 rows .*words < 9: 2",
        ),
    ],
)
def test_faults_name_operator_and_row(tmp_path, values, operators, message):
    file = write(tmp_path, [{"q": value} for value in values])
    with pytest.raises(DataError, match=message):
        run(tmp_path, file, *operators)


def test_llm_scores_are_cached_and_nonsense_is_counted(tmp_path):
    file = write(tmp_path, [{"q": f"task {n}", "a": n} for n in range(6)])

    def answer(body: dict[str, Any], number: int) -> Any:
        text = body["messages"][0]["content"]
        assert "Question:\ntask" in text and "Answer:\n" in text
        return says("hmm" if "task 5" in text else f"Good. Score: {1 + int(text.split('Answer:')[1][1])}")

    with judge_server(answer) as server:
        score = {
            "type": "llm_score",
            "model": {"url": server.url, "model": "m", "retries": 0},
            "input_columns": ["q", "a"],
            "field_names": ["Question", "Answer"],
            "criterion": "difficulty",
            "invalid": {"attempts": 2, "max_fraction": 0.5},
        }
        result = run(tmp_path, file, score)
        assert len(server.requests) == 7
        assert [row["llm_difficulty_score"] for row in rows_of(result)] == [0.5, 0.75, 1.0, None]
        operator = result.manifest["operators"][0]
        assert operator["counts"] == {"no usable reply": 1}
        assert operator["scores"]["llm_difficulty_score"]["count"] == 5
        run(tmp_path, file, score, {"type": "order", "by": ["a"]})
        assert len(server.requests) == 7  # unusable replies are cached, too
        strict = {**score, "invalid": {"attempts": 1, "max_fraction": 0.1}}
        message = r"no usable reply for 1 of 6 rows, more than invalid.max_fraction 0.1"
        with pytest.raises(DataError, match=message):
            run(tmp_path, file, strict)


def test_endpoint_that_dies_is_waited_for_and_the_command_continues(tmp_path):
    file = write(tmp_path, [{"q": f"task {n}"} for n in range(4)])
    alive = [False]

    def answer(body: dict[str, Any], number: int) -> Any:
        return says("variant") if alive[0] or number < 2 else (503, {"error": "away"})

    with judge_server(answer) as server:
        model = {"url": server.url, "model": "m", "retries": 1, "backoff_seconds": 0.01, "concurrency": 1}
        mapped = {"type": "llm_map", "model": model, "prompt": "Rephrase: {{ q }}", "output": "other"}
        with pytest.raises(DataError, match="did not respond in 2 attempts"):
            run(tmp_path, file, mapped)
        alive[0], before = True, len(server.requests)
        assert [row["other"] for row in rows_of(run(tmp_path, file, mapped))] == ["variant"] * 4
        assert len(server.requests) - before == 2


def test_a_kill_loses_the_replies_of_requests_in_flight_and_no_others(tmp_path):
    file = write(tmp_path, [{"q": f"task {n}"} for n in range(12)])
    answered, concurrency = 5, 3
    in_flight, is_killed = threading.Semaphore(0), threading.Event()

    def answer(body: dict[str, Any], number: int) -> Any:
        if number >= answered:
            in_flight.release()
            assert is_killed.wait(60)
        return says("variant")

    with judge_server(answer) as server:
        model = {"url": server.url, "model": "m", "retries": 0, "concurrency": concurrency}
        mapped = {"type": "llm_map", "model": model, "prompt": "Rephrase: {{ q }}", "output": "other"}
        start = (
            "import json, sys; from pathlib import Path; from tests.pipelines.test_task_pipeline import run; "
        )
        start += "folder, file, operator = sys.argv[1:]; run(Path(folder), Path(file), json.loads(operator))"
        command = [sys.executable, "-c", start, str(tmp_path), str(file), json.dumps(mapped)]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
            for _ in range(concurrency):  # each thread has stored the reply before its last request
                assert in_flight.acquire(timeout=60)
            process.kill()
        is_killed.set()
        assert len(server.requests) == answered + concurrency
        assert [row["other"] for row in rows_of(run(tmp_path, file, mapped))] == ["variant"] * 12
        sent = [json.dumps(body) for body in server.requests]
        assert len(sent) == 12 + concurrency
        assert set(sent[answered : answered + concurrency]) <= set(sent[answered + concurrency :])


def test_synthesized_rows_follow_their_row(tmp_path):
    file = write(tmp_path, [{"q": "one", "a": "1"}, {"q": "two", "a": "2"}])

    def answer(body: dict[str, Any], number: int) -> Any:
        word = body["messages"][0]["content"]
        return says(f'Here: {{"q": "{word}!", "a": "x"}}' if "one" in word else "{}")

    with judge_server(answer) as server:
        section = {
            "type": "synthesize",
            "model": {"url": server.url, "model": "m", "retries": 0},
            "prompt": "{{ q }} {{ variant }}",
            "columns": ["q", "a"],
            "output": "variant",
            "invalid": {"attempts": 1, "max_fraction": 0.5},
        }
        result = run(tmp_path, file, section)
    assert [(row["q"], row["a"], row["variant"]) for row in rows_of(result)] == [
        ("one", "1", 0),
        ("one 1!", "x", 1),
        ("two", "2", 0),
    ]


def test_pass_rates_filter_and_are_sampled_once(tmp_path):
    rewards = [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], []]
    file = write(tmp_path, [{"q": str(n), "r": r} for n, r in enumerate(rewards)])
    services = Services()
    section = {"type": "pass_rate", "rollouts_per_task": 2, "min": 0.1}
    result = run(tmp_path, file, section, services=services)
    assert [(row["q"], row["pass_rate"], row["reward_std"]) for row in rows_of(result)] == [
        ("0", 1.0, 0.0),
        ("1", 0.5, 0.5),
    ]
    assert [each["reason"] for each in result.removed()] == ["pass_rate < 0.1", "cannot be sampled"]
    varied = run(tmp_path, file, {**section, "min_reward_std": 0.1}, services=services)
    assert [row["q"] for row in rows_of(varied)] == ["1"] and services.sampled == 4


def test_columns_and_export(tmp_path):
    file = write(tmp_path, [{"q": "a b", "x": {"k": 1}}, {"q": "c d", "x": {"k": 2}}])
    for name in ("out.jsonl", "out.parquet"):
        run(tmp_path, file, LONG, columns=["words", "q"], export=str(tmp_path / name))
        data = DataConfig.model_validate({"train": {"path": str(tmp_path / name)}})
        assert list(read_rows(data.train).scan(["q"]))[1]["q"] == "c d"
    assert (tmp_path / "out.jsonl").read_text().splitlines()[0] == '{"words":2,"q":"a b"}'
    run(tmp_path, file, LONG, export=f"sqlite:///{tmp_path}/tasks.db", export_table="tasks")
    table = {"path": f"sqlite:///{tmp_path}/tasks.db", "table": "tasks"}
    rows = read_rows(DataConfig.model_validate({"train": table}).train)
    assert [(row["q"], row["x"]) for row in rows.scan([])] == [("a b", {"k": 1}), ("c d", {"k": 2})]
    with pytest.raises(DataError, match=r"data\.pipeline\.columns: there is no column 'z'"):
        run(tmp_path, file, LONG, columns=["z"])


def test_difference_and_preview(tmp_path):
    file = write(tmp_path, [{"q": "a b"}, {"q": "c"}, {"q": "a b"}])

    def section(*operators: dict[str, Any]) -> DataConfig:
        train = {"path": str(file), "prompt": "q"}
        return DataConfig.model_validate({"train": train, "pipeline": {"operators": operators}})

    def shown(*operators: dict[str, Any]) -> list[str]:
        return list(preview(section(*operators), Services(), tmp_path / "cache", print, 10))

    result = run(tmp_path, file, LONG, DEDUPLICATE)
    text = "\n".join(describe_difference(section(LONG, DEDUPLICATE).train, result, 10))
    assert "0 length: words < 2 (1 rows)" in text and "line 2 (1)" in text and "+ words: 2" in text
    lines = "\n".join(shown(LONG, DEDUPLICATE))
    for part in ("3 of 3 rows", "after operator 1, deduplicate: 1 rows", "exact duplicate"):
        assert part in lines
    assert shown(NINE, DEDUPLICATE)[-1].startswith("No row is left for operator 1")


@pytest.mark.slow
def test_processes_give_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "ROWS_PER_PART", 5)
    file = write(tmp_path, [{"q": "w " * (n % 4 + 1), "n": n} for n in range(40)])
    one = rows_of(run(tmp_path / "one", file, LONG))
    assert rows_of(run(tmp_path / "two", file, LONG, processes=2)) == one and len(one) == 30


@pytest.mark.nightly
def test_an_error_in_a_process_names_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "ROWS_PER_PART", 5)
    file = write(tmp_path, [{"q": "a b" if n != 17 else None} for n in range(40)])
    with pytest.raises(DataError, match=r"rows\.jsonl line 18: has no 'q'"):
        run(tmp_path, file, LONG, processes=2)
