"""The recorder: rows, sessions, rollouts, tables of samples and monitors, also of a resumed run."""

from __future__ import annotations

import errno
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from strop.config.load.loader import load_values
from strop.config.schema.record import RecordConfig
from strop.config.schema.reward import RewardConfig
from strop.errors import Interrupted, RunFolderError
from strop.run.recording.monitor import Monitor, SessionInfo
from strop.run.recording.recorder import MONITORS, Recorder, describe_sandbox, sandbox_info
from strop.run.recording.trackers import TensorBoardMonitor
from strop.run.state.horizon import Horizon
from strop.run.state.resume import StartPoint
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder
from strop.runs.sample_table import choose_tasks, samples_markdown
from strop.runs.sessions import read_sessions
from tests.report.run_folders import group


def recorder(
    folder: Path,
    *,
    after: int = 0,
    steps: int = 6,
    monitors: tuple[str, ...] = (),
    answers: int = 0,
    using: Sequence[Monitor] | None = None,
) -> Recorder:
    values: dict[str, Any] = {
        "model": {"path": "model"},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "gsm8k",
        "record": {"monitors": list(monitors), "eval_answers": answers},
    }
    folder.mkdir(parents=True, exist_ok=True)
    start = StartPoint(RunState(step=after), None, ())
    return Recorder(
        RunFolder(folder), load_values(values), Horizon(steps, steps, 3, 1), start, io.StringIO(), using
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


GROUP = group(1, ["answer & <b>bold</b>"], [1.0])


def test_each_step_has_a_row_of_defined_metrics(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        record.log_step(0, {"eval/sums/reward": 0.25})
        record.log_step(1, {"reward/mean": 0.1 + 0.2, "grad_norm": math.inf})
        # Every row is flushed: a kill at this point loses none.
        assert [row["step"] for row in rows(tmp_path)] == [0, 1]
    assert rows(tmp_path)[1] == {
        "step": 1,
        "reward/mean": 0.30000000000000004,
        "grad_norm": None,
        "memory/peak_mb": record.last["memory/peak_mb"],
    }
    assert record.last["memory/peak_mb"] > 1
    assert not (tmp_path / "tensorboard").exists(), "only the configured monitors are started"
    # A run that was killed before its first checkpoint starts over.
    with recorder(tmp_path) as record:
        record.log_step(0, {"eval/sums/reward": 0.25})
    assert [row["step"] for row in rows(tmp_path)] == [0]
    with pytest.raises(KeyError, match="reward/meen"), recorder(tmp_path) as record:
        record.log_step(1, {"reward/meen": 1.0})


def test_a_resumed_run_deletes_the_steps_that_it_repeats(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        for step in range(5):
            record.log_step(step, {"reward/mean": step / 7})
            record.log_rollouts(step, [GROUP])
            record.log_evaluation("sums", step, [GROUP])
    before = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rewa')  # a kill during the write
    with recorder(tmp_path, after=3) as record:
        assert record.last["step"] == 3
        assert sorted(p.name for p in (tmp_path / "rollouts").iterdir())[-1] == "step-000003.parquet"
        assert sorted(p.name for p in (tmp_path / "eval" / "sums").iterdir())[-1] == "step-000003.parquet"
        record.log_step(4, {"reward/mean": 0.0})
    after = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert after[:4] == before[:4]
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]


def test_metrics_of_an_evaluation_join_the_row_of_their_step(tmp_path: Path) -> None:
    with recorder(tmp_path) as record:
        record.log_step(1, {"reward/mean": 0.5})
        record.log_step(2, {"reward/mean": 0.25})
        before = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
        record.add_to_step(2, {"eval/sums/reward": 1.0})
        record.log_step(3, {"reward/mean": 0.125})
        record.add_to_step(2, {"eval/sums/reward": 0.75})  # an explorer's evaluation of an earlier version
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines()[0] == before[0]
    found = [{name: row[name] for name in row if name != "memory/peak_mb"} for row in rows(tmp_path)]
    assert found == [
        {"step": 1, "reward/mean": 0.5},
        {"step": 2, "reward/mean": 0.25, "eval/sums/reward": 1.0},
        {"step": 3, "reward/mean": 0.125},
        {"step": 2, "eval/sums/reward": 0.75},
    ]


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunFolderError, match="line 2"), recorder(tmp_path, after=3):
        pass


def test_every_session_has_an_outcome(tmp_path: Path) -> None:
    with recorder(tmp_path):
        pass
    with pytest.raises(Interrupted), recorder(tmp_path, after=2):
        raise Interrupted("SIGTERM received.", 15)
    with pytest.raises(ValueError, match="a fault"), recorder(tmp_path, after=2):
        raise ValueError("a fault")
    recorder(tmp_path, after=3).__enter__()  # killed: no outcome is recorded
    with recorder(tmp_path, after=4):
        pass
    sessions = read_sessions(tmp_path)
    ended = [(session["from_step"], session["outcome"], session["message"]) for session in sessions]
    assert ended == [
        (0, "finished", None),
        (2, "interrupted", "SIGTERM received."),
        (2, "failed", "a fault"),
        (3, "killed", None),
        (4, "finished", None),
    ]
    assert sessions[0]["packages"]["strop"] and sessions[0]["host"]["cores"] >= 1
    assert sessions[0]["started"] <= sessions[0]["ended"]


def test_secrets_in_the_command_line_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/strop", "train", "run.yaml", "reward.args.api_key=hunter2"])
    with recorder(tmp_path):
        pass
    assert read_sessions(tmp_path)[0]["command"] == "strop train run.yaml 'reward.args.api_key=***'"
    assert "hunter2" not in (tmp_path / "run.json").read_text()


def test_rollouts_as_parquet(tmp_path: Path) -> None:
    messages = ({"role": "system", "content": "Be brief."}, *GROUP.task.messages)
    task = replace(GROUP.task, messages=messages, source="sums", answer=[1, 2])
    with recorder(tmp_path) as record:
        record.log_rollouts(7, [replace(GROUP, task=task), group(2, ["no", "yes"], [None, 0.5])])
    path = tmp_path / "rollouts" / "step-000007.parquet"
    found = pq.read_table(path).to_pylist()
    assert found[0] == {
        "step": 7,
        "task_id": "t1",
        "group": "t1",
        "index": 0,
        "source": "sums",
        "prompt": "[system]\nBe brief.\n\n[user]\n2+2?",
        "answer": "[1, 2]",
        "images": [],
        "model_prompt": None,
        "text": "answer & <b>bold</b>",
        "messages": None,
        "reward": 1.0,
        "reward_parts": [("gsm8k", 1.0)],
        "status": "ok",
        "error": None,
        "turns": 1,
        "response_tokens": 2,
        "versions": [0],
    }
    assert [(row["reward"], row["error"], row["answer"]) for row in found[1:]] == [
        (None, "it failed", "4"),
        (0.5, None, "4"),
    ]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def log_steps(folder: Path, steps: Iterable[int], *, after: int = 0) -> None:
    """Log steps to TensorBoard, in a session after a step."""
    with recorder(folder, after=after, monitors=("tensorboard",)) as record:
        for step in steps:
            record.log_step(step, {"reward/mean": float(step + 10 * after)})


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True)
    events.Reload()
    return events


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 5))
    log_steps(tmp_path, [3], after=2)
    rewards = [(event.step, event.value) for event in events_of(tmp_path).Scalars("reward/mean")]
    assert rewards == [(1, 1.0), (2, 2.0), (3, 23.0)]


@pytest.mark.parametrize("cut", [1, 3, 20, 40])
def test_tensorboard_reads_past_a_record_that_a_kill_cut_off(tmp_path: Path, cut: int) -> None:
    """`cut` bytes of the last record are missing, of its checksum or of its data."""
    log_steps(tmp_path, range(1, 5))
    (file,) = (tmp_path / "tensorboard").iterdir()
    os.truncate(file, file.stat().st_size - cut)
    log_steps(tmp_path, [5, 6], after=4)
    for metric in ("reward/mean", "memory/peak_mb"):
        assert [event.step for event in events_of(tmp_path).Scalars(metric)] == [1, 2, 3, 5, 6]


def test_a_full_disk_leaves_no_part_of_a_record_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fake: the disk takes ten bytes of the last record."""
    write, left = os.write, 10

    def write_few(descriptor: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:left])
        left -= written
        return written

    monitor = TensorBoardMonitor()
    record = RecordConfig(monitors=("tensorboard",))
    session = SimpleNamespace(run=SimpleNamespace(record=record), folder=tmp_path, first_step=0)
    monitor.start(cast(SessionInfo, session))
    monitor.log(1, {"reward/mean": 1.0})
    (file,) = (tmp_path / "tensorboard").iterdir()
    before = file.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "write", write_few)
        monitor.log(2, {"reward/mean": 2.0})
    monitor.finish("failed", None)
    assert left == 0 and file.read_bytes() == before
    assert capfd.readouterr() == ("", "")


def test_tensorboard_has_evaluation_responses(tmp_path: Path) -> None:
    with recorder(tmp_path, monitors=("tensorboard",), answers=2) as record:
        record.log_evaluation("sums", 1, [GROUP])
    (shown,) = events_of(tmp_path).Tensors("eval/sums/answers/text_summary")
    assert shown.step == 1 and b"| prompt | expected | answer | reward |" in shown.tensor_proto.string_val[0]


class ListMonitor:
    """Monitor that collects its calls."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def _add(self, name: str, *values: Any) -> None:
        if name == self.fails:
            raise OSError(28, "No space left on device")
        self.calls.append((name, *values))

    def __getattr__(self, name: str) -> Any:
        return partial(self._add, name)


def test_every_monitor_receives_steps_samples_and_the_outcome(tmp_path: Path) -> None:
    monitors = (ListMonitor(), ListMonitor())
    with recorder(tmp_path, after=2, using=cast(Any, monitors)) as record:
        record.log_step(3, {"reward/mean": 0.5})
        record.log_evaluation("sums", 3, [GROUP])
        record.log_message("a line")
    for monitor in monitors:
        assert [name for name, *_ in monitor.calls] == ["start", "log", "samples", "message", "finish"]
        (session,), (step, metrics), (name, _, groups), message, finish = (args for _, *args in monitor.calls)
        assert (session.first_step, session.steps) == (3, 6)
        assert (step, metrics["reward/mean"], name, len(groups)) == (3, 0.5, "sums", 1)
        assert (message, finish) == (["a line"], ["finished", None])


def test_a_monitor_that_cannot_write_ends_the_run_and_the_others_finish(tmp_path: Path) -> None:
    monitors = (ListMonitor(fails="log"), ListMonitor())
    with (
        pytest.raises(RunFolderError, match="No space left"),
        recorder(tmp_path, using=cast(Any, monitors)) as record,
    ):
        record.log_step(1, {"reward/mean": 0.5})
    assert [monitor.calls[-1][:2] for monitor in monitors] == [("finish", "failed")] * 2
    assert read_sessions(tmp_path)[0]["outcome"] == "failed"
    assert [row["step"] for row in rows(tmp_path)] == [1]


def test_the_registry_has_every_monitor_of_the_schema() -> None:
    (kind, _) = get_args(RecordConfig.model_fields["monitors"].annotation)
    assert set(get_args(kind)) == set(MONITORS)


def test_a_write_error_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "eval").touch()
    with (
        pytest.raises(RunFolderError, match=r"cannot be written .*eval") as caught,
        recorder(tmp_path) as record,
    ):
        record.log_evaluation("sums", 1, [GROUP])
    assert "\n" not in str(caught.value)


def test_the_sandbox_is_recorded() -> None:
    run = load_values({"model": {"path": "x"}, "reward": "code", "data": {"train": {"path": "y"}}}).run
    assert sandbox_info(run)["sandbox"].keys() in ({"name", "isolation", "unlimited"}, {"name", "error"})
    described = describe_sandbox(
        {"name": "process", "isolation": "confined", "unlimited": ["threads", "number of files"]}
    )
    assert "at the isolation level confined, without a limit of: threads, number of files." in described
    assert sandbox_info(run.model_copy(update={"reward": RewardConfig()})) == {}


def test_the_choice_depends_on_the_tasks_alone() -> None:
    ids = [f"val:{n}" for n in range(50)]
    assert choose_tasks(ids, 5) == choose_tasks(reversed(ids), 5) == choose_tasks(ids, 9)[:5]
    assert choose_tasks(ids, 5) != sorted(ids)[:5]
    assert choose_tasks(ids[:3], 9) and len(choose_tasks(ids[:3], 9)) == 3


def test_a_cell_is_one_line_and_no_html() -> None:
    table = samples_markdown([group(0, ["a|b\n<i>c"], [0.25])], 3)
    head, rule, row = table.splitlines()
    assert head == "| prompt | expected | answer | reward |" and rule.count("---") == 4
    assert row.endswith("| a\\|b<br>&lt;i>c | 0.25 |")
