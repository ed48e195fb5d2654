"""The record of a run: rows, sessions, rollouts, TensorBoard, and what a resumed run makes of them."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from strop.config.load import load_values
from strop.errors import Interrupted, RunFolderError
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.records.record import Recorder
from strop.run.records.sessions import read_sessions
from strop.run.resume import Start
from strop.types import Group, Rollout, Sampling, Task, Turn


def recorder(
    folder: Path, *, after: int = 0, steps: int = 6, monitors: tuple[str, ...] = (), answers: int = 0
) -> Recorder:
    values: dict[str, Any] = {
        "model": {"path": "model"},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "gsm8k",
        "record": {"monitors": list(monitors), "eval_answers": answers},
    }
    folder.mkdir(parents=True, exist_ok=True)
    start = Start(RunState(step=after), None, ())
    return Recorder(RunFolder(folder), load_values(values), Length(steps, steps, 3, 1), start, io.StringIO())


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rollout(index: int, *, reward: float | None = 1.0, error: str | None = None) -> Rollout:
    tokens = np.arange(3 + index, dtype=np.int32)
    logprobs = np.zeros(len(tokens), dtype=np.float32)
    turn = Turn(np.arange(2, dtype=np.int32), tokens, logprobs, logprobs, "stop", version=4)
    return Rollout(
        id=f"r{index}",
        task_id="t1",
        group="g1",
        index=index,
        turns=() if error else (turn,),
        text=f"answer {index} & <b>bold</b>",
        status="error" if error else "ok",
        sampling=Sampling(),
        reward=reward,
        reward_parts={} if error else {"gsm8k": 1.0, "format": 0.5},
        error=error,
    )


def group(*rollouts: Rollout, answer: Any = "4") -> Group:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"})
    return Group("g1", Task("t1", messages, np.arange(2, dtype=np.int32), answer, "sums"), rollouts)


def test_one_row_per_step(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        record.step(0, {"eval/sums/reward": 0.25})
        record.step(1, {"reward/mean": 0.1 + 0.2, "grad_norm": math.inf})
        # Nothing waits in a buffer: a kill right now loses no row.
        assert [row["step"] for row in rows(tmp_path)] == [0, 1]
    assert rows(tmp_path)[1] == {
        "step": 1,
        "reward/mean": 0.30000000000000004,
        "grad_norm": None,
        "memory/peak_mb": record.last["memory/peak_mb"],
    }
    assert record.last["memory/peak_mb"] > 1


def test_a_metric_without_a_definition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="reward/meen"), recorder(tmp_path) as record:
        record.step(1, {"reward/meen": 1.0})


def test_a_resumed_run_drops_what_it_does_again(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        for step in range(5):
            record.step(step, {"reward/mean": step / 7})
            record.rollouts(step, [group(rollout(0))])
            record.evaluation("sums", step, [group(rollout(0))])
    before = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rewa')  # the kill came here
    with recorder(tmp_path, after=3) as record:
        assert record.last["step"] == 3
        assert sorted(p.name for p in (tmp_path / "rollouts").iterdir())[-1] == "step-000003.parquet"
        assert sorted(p.name for p in (tmp_path / "eval" / "sums").iterdir())[-1] == "step-000003.parquet"
        record.step(4, {"reward/mean": 0.0})
    after = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:4] == before[:4]
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]


def test_a_run_that_starts_over_keeps_no_row(tmp_path: Path) -> None:
    """Killed before its first checkpoint: step 0 is measured again."""
    with recorder(tmp_path) as record:
        record.step(0, {"eval/sums/reward": 0.25})
        record.step(1, {})
    with recorder(tmp_path) as record:
        record.step(0, {"eval/sums/reward": 0.25})
    assert [row["step"] for row in rows(tmp_path)] == [0]


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunFolderError, match="line 2"), recorder(tmp_path, after=3):
        pass


def test_sessions_say_how_each_ended(tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    with pytest.raises(Interrupted), recorder(tmp_path, after=2):
        raise Interrupted("SIGTERM came.", 15)
    with pytest.raises(ValueError, match="a fault"), recorder(tmp_path, after=2):
        raise ValueError("a fault")
    recorder(tmp_path, after=3).__enter__()  # killed: it never says how it ended
    with recorder(tmp_path, after=4):
        pass
    sessions = read_sessions(tmp_path)
    ended = [(session["from_step"], session["outcome"], session["message"]) for session in sessions]
    assert ended == [
        (0, "finished", None),
        (2, "interrupted", "SIGTERM came."),
        (2, "failed", "a fault"),
        (3, "killed", None),
        (4, "finished", None),
    ]
    assert sessions[0]["packages"]["strop"] and sessions[0]["host"]["cores"] >= 1
    assert sessions[0]["started"] <= sessions[0]["ended"]


def test_secrets_in_the_command_line_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/strop", "train", "run.yaml", "reward.args.api_key=hunter2"])
    with recorder(tmp_path):
        pass
    assert read_sessions(tmp_path)[0]["command"] == "strop train run.yaml 'reward.args.api_key=***'"
    assert "hunter2" not in (tmp_path / "run.json").read_text()


def test_rollouts_as_parquet(tmp_path: Path) -> None:
    groups = [group(rollout(0), rollout(1, reward=None, error="it broke")), group(rollout(2), answer=[1, 2])]
    with recorder(tmp_path) as record:
        record.rollouts(7, groups)
    path = tmp_path / "rollouts" / "step-000007.parquet"
    found = pq.read_table(path).to_pylist()
    assert found[0] == {
        "step": 7,
        "task_id": "t1",
        "group": "g1",
        "index": 0,
        "source": "sums",
        "prompt": "[system]\nBe brief.\n\n[user]\n2+2?",
        "answer": "4",
        "text": "answer 0 & <b>bold</b>",
        "messages": None,
        "reward": 1.0,
        "reward_parts": [("gsm8k", 1.0), ("format", 0.5)],
        "status": "ok",
        "error": None,
        "turns": 1,
        "response_tokens": 3,
        "versions": [4],
    }
    assert (found[1]["reward"], found[1]["error"], found[1]["versions"]) == (None, "it broke", [])
    assert found[2]["answer"] == "[1, 2]"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    with recorder(tmp_path, monitors=("tensorboard",)) as record:
        for step in range(1, 5):
            record.step(step, {"reward/mean": float(step)})
    with recorder(tmp_path, after=2, monitors=("tensorboard",)) as record:
        record.step(3, {"reward/mean": 30.0})
    events = EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/mean")] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_tensorboard_shows_held_out_answers(tmp_path: Path) -> None:
    with recorder(tmp_path, monitors=("tensorboard",), answers=2) as record:
        record.evaluation("sums", 1, [group(rollout(0))])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (shown,) = events.Tensors("eval/sums/answers/text_summary")
    assert shown.step == 1 and b"| prompt | expected | answer | reward |" in shown.tensor_proto.string_val[0]


def test_only_the_monitors_asked_for(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        record.step(1, {"reward/mean": 1.0})
    assert not (tmp_path / "tensorboard").exists()


def test_a_record_that_cannot_be_written_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "eval").touch()
    with (
        pytest.raises(RunFolderError, match=r"could not be written .*eval") as caught,
        recorder(tmp_path) as record,
    ):
        record.evaluation("sums", 1, [group(rollout(0))])
    assert "\n" not in str(caught.value)
