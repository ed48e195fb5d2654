"""The Scorer: sums and components, and failures that affect one rollout only."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from strop.config.schema.reward import RewardConfig
from strop.errors import RewardError
from strop.rewards.execution import worker_pool
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.worker_pool import RewardWorkerProcess
from strop.rewards.registry import BUILTIN_REWARDS
from strop.rewards.scorer import Scorer
from strop.types import Rollout, RolloutGroup
from tests.cases import nightly
from tests.rewards import users
from tests.rewards.builders import group


def section(*functions: Any, **options: Any) -> RewardConfig:
    listed = [{"function": f} if isinstance(f, str) else f for f in functions]
    return RewardConfig(**{"functions": listed, "workers": 1, "timeout_seconds": 20.0, **options})


def score(reward: RewardConfig, groups: list[RolloutGroup], extra: Any = None) -> list[list[Rollout]]:
    with Scorer(reward, extra) as scorer:
        return [list(g.rollouts) for g in scorer.score(groups)]


def rewards(rollouts: list[Rollout] | tuple[Rollout, ...]) -> list[float | None]:
    return [rollout.reward for rollout in rollouts]


NOTHING = {"function": "exact", "weight": 0.0}
LIMIT = 5.0
"""Time limit that functions are made to exceed, and that no other one reaches, on a busy machine either."""


def test_a_weighted_sum_with_named_parts():
    reward = section(
        {"function": "gsm8k", "weight": 2.0},
        {"function": "exact", "name": "words", "weight": -0.5, "args": {"part": "last_line"}},
        {"function": f"{users.__file__}:compute_score", "weight": 10},
    )
    ((right, wrong),) = score(reward, [group(["#### 4", "4"], "4", extra_info={"index": 3})])
    assert right.reward == 2.0
    assert right.reward_parts == {
        "gsm8k": 1.0,
        "words": 0.0,
        "compute_score": 0.0,
        "compute_score/acc": 0.0,
        "compute_score/index": 3.0,
    }
    assert wrong.reward == -0.5 + 10
    assert right.status == wrong.status == "ok"


def test_results_keep_their_order():
    groups = [group([str(n * 5 + k) for k in range(5)], "0", name=f"t{n}") for n in range(200)]

    def uneven(completion: str) -> float:
        time.sleep(0.02 * (int(completion) % 97 == 0))
        return float(completion)

    scored = score(section(NOTHING, workers=3), groups, uneven)
    assert [reward for rollouts in scored for reward in rewards(rollouts)] == list(map(float, range(1000)))
    assert [[r.id for r in rollouts] for rollouts in scored] == [[r.id for r in g.rollouts] for g in groups]


MISHAPS = {
    "raise": r"raised KeyError: '9'\n  File .*users.py\", line \d+, in mishaps\n",
    "loop": r"took longer than 5 s and was stopped, at\n  File .*users.py\", line \d+ in mishaps$",
    "sleep": "took longer than 5 s and was stopped, at",
    "regex": r"took longer than 5 s and was stopped, at\n  File .*re/__init__.py.* in match\n",
    "exit": r"raised SystemExit: 3\n  File",
    "os._exit": "ended its process with exit code 4",
    "abort": r"ended its process by signal 6 \(Aborted\), at\n  File .*users.py",
    "killed": r"ended its process by signal 9 \(Killed\)$",
    "nan": "returned nan; a reward is a finite number",
    "none": "returned None; a reward is a number",
    "text": "returned a str, 'good'",
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, *nightly(2)])
def test_a_failure_affects_one_rollout_only(workers):
    """The time limit is one response's: all of them take longer."""
    texts = [
        text for n, mishap in enumerate(MISHAPS) for text in (*map(str, range(4 * n, 4 * n + 4)), mishap)
    ]
    reward = section(NOTHING, workers=workers, timeout_seconds=LIMIT)
    (rollouts,) = score(reward, [group(texts, "9", name="task-7")], users.mishaps)
    failed = {r.text: r for r in rollouts if r.text in MISHAPS}
    for mishap, message in MISHAPS.items():
        broken = failed[mishap]
        assert (broken.status, broken.reward, broken.reward_parts) == ("error", None, {})
        said = rf"(?s)task 'task-7': the reward 'mishaps' {message}"
        assert re.match(said, broken.error or ""), broken.error
    others = [r for r in rollouts if r.text not in MISHAPS]
    assert rewards(others) == list(map(float, range(44))) and {r.status for r in others} == {"ok"}


def test_zero_on_timeout_counts_the_function_that_hangs_as_0_and_hides_no_other_failure():
    """The functions before and after it keep their values."""
    reward = section(
        {"function": "exact", "weight": 4.0},
        {"function": f"{users.__file__}:hang", "weight": 7.0},
        {"function": f"{users.__file__}:share_of_a", "weight": 2.0},
        timeout_seconds=LIMIT,
        on_timeout="zero",
    )

    def fails(completion: str) -> float:
        if completion == "os._exit":
            os._exit(4)
        return float("nan") if completion == "nan" else 0.0

    (rollouts,) = score(reward, [group(["a", "aloop", "os._exit", "nan", "aa"], "aloop")], fails)
    first, hung, *failed, last = rollouts
    assert rewards(rollouts) == [7.0 + 2.0, 4.0 + 0.0 + 2.0 * 0.2, None, None, 7.0 + 2.0]
    assert {r.status for r in (first, hung, last)} == {"ok"} and {r.status for r in failed} == {"error"}
    assert hung.reward_parts == {"exact": 1.0, "hang": 0.0, "share_of_a": 0.2, "fails": 0.0}
    assert [r.reward_limit_exceeded for r in (first, hung, last)] == [False, True, False]


def test_a_built_in_that_hangs_is_a_wrong_answer(monkeypatch):
    """Whatever `on_timeout` is; the run file names a built-in by its short name or its path."""
    monkeypatch.setitem(BUILTIN_REWARDS, "hanging", "tests.rewards.users.hang")
    spec = RewardFunctionSpec.of("tests.rewards.users.hang", on_timeout="error")
    assert (spec.on_timeout, RewardFunctionSpec.of("hanging").on_timeout) == ("zero", "zero")
    reward = section("tests.rewards.users.hang", timeout_seconds=LIMIT)
    (rollouts,) = score(reward, [group(["a", "loop", "b"])])
    assert rewards(rollouts) == [1.0, 0.0, 1.0]


def test_failed_rollouts_are_not_scored():
    whole = group(["1", "2", "3"], "1")
    broken = replace(whole.rollouts[1], status="error", error="the engine was gone")
    cut = replace(whole.rollouts[2], status="truncated")
    given = replace(whole, rollouts=(whole.rollouts[0], broken, cut))
    with Scorer(section("exact")) as scorer:
        (scored,) = scorer.score([given])
        assert scorer.score([replace(given, rollouts=(broken,))])[0].rollouts == (broken,)
        assert scorer.score([]) == []
    assert scored.rollouts[1] is broken
    assert [r.status for r in scored.rollouts] == ["ok", "error", "truncated"]
    assert rewards(scored.rollouts) == [1.0, None, 0.0]


def test_calls_from_several_threads():
    with Scorer(section("gsm8k", workers=2)) as scorer, ThreadPoolExecutor(4) as threads:

        def work(number: int) -> list[float | None]:
            return rewards(scorer.score([group([f"#### {n}" for n in range(6)], str(number))])[0].rollouts)

        assert list(threads.map(work, range(4))) == [[float(n == k) for n in range(6)] for k in range(4)]


def test_mistakes_are_reported_by_the_constructor():
    with pytest.raises(RewardError, match="did you mean 'gsm8k'"):
        Scorer(section("gms8k"))
    with pytest.raises(RewardError, match=r"two components are named 'exact'.*name"):
        Scorer(section("exact", "exact"))
    with pytest.raises(RewardError, match="signature"):
        Scorer(section("exact"), lambda: 1.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise ValueError('not here')", r"loading .*here_only.py failed: ValueError: not here"),
        ("os._exit(9)", "while it loaded f, ended its process with exit code 9"),
    ],
)
def test_function_that_only_a_worker_fails_to_load(tmp_path, fault, message):
    file = tmp_path / "here_only.py"
    file.write_text(f"import os\nif os.getpid() != {os.getpid()}: {fault}\ndef f(text): return 1.0\n")
    with Scorer(section(f"{file}:f")) as scorer, pytest.raises(RewardError, match=message):
        scorer.score([group(["a"])])


def test_workers_start_lazily_are_replaced_when_killed_and_end_with_the_scorer():
    ours = psutil.Process()
    with Scorer(section("gsm8k")) as scorer:
        assert not _workers(ours)
        scorer.score([group(["#### 1"] * 10, "1")])
        (supervisor,) = _workers(ours)
        scorer.score([group(["#### 1"] * 10, "1")])
        assert _workers(ours) == [supervisor]
        (worker,) = supervisor.children()
        worker.kill()
        (scored,) = scorer.score([group(["#### 1", "#### 2"], "1")])
        assert rewards(scored.rollouts) == [1.0, 0.0] and supervisor not in _workers(ours)
    gc.collect()
    assert not _workers(ours)


def test_repeatedly_killed_workers_end_the_run(monkeypatch):
    send = RewardWorkerProcess.send

    def killed_before(self: RewardWorkerProcess, message: object) -> bool:
        if isinstance(message, list):
            self.kill()
            self._process.wait()
        return send(self, message)

    monkeypatch.setattr(RewardWorkerProcess, "send", killed_before)
    message = r"11 reward worker processes died between two responses.*signal 9"
    with Scorer(section("gsm8k")) as scorer, pytest.raises(RewardError, match=message):
        scorer.score([group(["#### 1"], "1")])


def test_stopped_worker_is_killed(monkeypatch):
    monkeypatch.setattr(worker_pool, "GRACE_SECONDS", 0.5)

    def stops(completion: str) -> float:
        if completion == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return 1.0

    (rollouts,) = score(section(NOTHING, timeout_seconds=LIMIT), [group(["a", "stop", "b"], "x")], stops)
    assert rewards(rollouts) == [1.0, None, 1.0]
    assert rollouts[1].error == "task 't0': the reward 'stops' took longer than 5 s and was killed"


def test_a_worker_that_ended_by_itself_was_not_late_however_late_that_is_seen(monkeypatch):
    """The pool's thread sees the end after the deadline, as where it has waited for a processor."""
    receive = worker_pool.RewardWorkerPool._receive

    def late(self: worker_pool.RewardWorkerPool, worker: worker_pool._Worker) -> None:
        worker.deadline = 0.0
        receive(self, worker)

    monkeypatch.setattr(worker_pool.RewardWorkerPool, "_receive", late)

    def ends(completion: str) -> float:
        os._exit(4)

    ((rollout,),) = score(section(NOTHING), [group(["a"], "x")], ends)
    assert rollout.error == "task 't0': the reward 'ends' ended its process with exit code 4"


class _Untakable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (threading.Lock(), "column of the tasks cannot be sent.*lock"),
        (_Untakable(), "column of the tasks cannot be unpickled.*ValueError"),
    ],
)
def test_columns_that_cannot_be_pickled(column, message):
    with Scorer(section("exact")) as scorer, pytest.raises(RewardError, match=message):
        scorer.score([group(["a"], "a", column=column)])


def _workers(parent: psutil.Process) -> list[psutil.Process]:
    """The supervisors of the workers."""
    found = []
    for process in parent.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "strop.rewards.execution.worker_main" in process.cmdline():
                found.append(process)
    return found


SCRIPT = """
import subprocess, sys
from strop.config.schema.reward import RewardConfig
from strop.rewards.scorer import Scorer
from tests.rewards.builders import group

def hangs(completion):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    print("hanging", flush=True)
    while True:
        pass

reward = RewardConfig(functions=[{"function": "exact"}], workers=1, timeout_seconds=60.0)
with Scorer(reward, hangs) as scorer:
    scorer.score([group(["a"])])
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_remains(sent):
    """After Ctrl-C and after a kill: neither the workers nor what the function itself had started."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "hanging\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == 3  # supervisor, worker, and the function's own process
        parent.send_signal(sent)
        _, alive = psutil.wait_procs(children, timeout=600)
        left = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        for process in left:
            process.kill()
        assert left == []
