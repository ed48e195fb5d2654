"""The Scorer: sums and components, and failures that affect one rollout only."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from strop.config.schema.reward import RewardConfig
from strop.errors import RewardError
from strop.rewards.execution import worker_pool
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.worker_process import RewardWorkerProcess
from strop.rewards.registry import BUILTIN_REWARDS
from strop.rewards.scorer import Scorer
from strop.types import Rollout, RolloutGroup
from tests.rewards import users
from tests.rewards.builders import group


def section(*functions: Any, **options: Any) -> RewardConfig:
    listed = [{"function": f} if isinstance(f, str) else f for f in functions]
    return RewardConfig(**{"functions": listed, "workers": 2, "timeout_seconds": 20.0, **options})


def score(
    reward: RewardConfig, groups: list[RolloutGroup], extra: Callable[..., Any] | None = None
) -> list[list[Rollout]]:
    with Scorer(reward, extra) as scorer:
        return [list(g.rollouts) for g in scorer.score(groups)]


def mishaps(completion: str, answer: str) -> Any:
    """Fails as the completion says, or returns the completion as a number."""
    match completion:
        case "raise":
            return {"1": 1}[answer]
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(1000)
        case "regex":
            return re.match("(a+)+$", "a" * 60 + "b")  # holds the GIL for ages
        case "exit":
            sys.exit(3)
        case "os._exit":
            os._exit(4)
        case "abort":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "nan":
            return float("nan")
        case "none":
            return None
        case "text":
            return "good"
    return float(completion)


def test_a_weighted_sum_with_named_parts() -> None:
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


def test_results_keep_their_order() -> None:
    groups = [group([str(n * 5 + k) for k in range(5)], "0", name=f"t{n}") for n in range(12)]

    def uneven(completion: str) -> float:
        time.sleep(0.02 * (int(completion) % 7 == 0))
        return float(completion)

    scored = score(section({"function": "exact", "weight": 0.0}, workers=3), groups, uneven)
    assert [r.reward for rollouts in scored for r in rollouts] == list(map(float, range(60)))
    assert [[r.id for r in rollouts] for rollouts in scored] == [[r.id for r in g.rollouts] for g in groups]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mishap", "message"),
    [
        ("raise", r"raised KeyError: '9'\n  File .*test_scorer.py\", line \d+, in mishaps\n"),
        (
            "loop",
            r"took longer than 1 s and was stopped, at\n  File .*test_scorer.py\", line \d+ in mishaps$",
        ),
        ("sleep", "took longer than 1 s and was stopped, at"),
        ("regex", r"took longer than 1 s and was stopped, at\n  File .*re/__init__.py.* in match\n"),
        ("exit", r"raised SystemExit: 3\n  File"),
        ("os._exit", "ended its process with exit code 4"),
        ("abort", r"ended its process by signal 6 \(Aborted\), at\n  File .*test_scorer.py"),
        ("killed", r"ended its process by signal 9 \(Killed\)$"),
        ("nan", "returned nan; a reward is a finite number"),
        ("none", "returned None; a reward is a number"),
        ("text", "returned a str, 'good'"),
    ],
)
def test_a_failure_affects_one_rollout_only(mishap: str, message: str) -> None:
    texts = [*map(str, range(20)), mishap, *map(str, range(20, 40))]  # in the middle of a chunk
    reward = section({"function": "exact", "weight": 0.0}, workers=1, timeout_seconds=1.0)
    (rollouts,) = score(reward, [group(texts, "9", name="task-7")], mishaps)
    broken = rollouts.pop(20)
    assert (broken.status, broken.reward, broken.reward_parts) == ("error", None, {})
    assert broken.error is not None
    assert re.match(rf"(?s)task 'task-7': the reward 'mishaps' {message}", broken.error), broken.error
    assert [r.reward for r in rollouts] == list(map(float, range(40)))
    assert all(r.status == "ok" for r in rollouts)


@pytest.mark.slow
def test_many_failures_on_two_workers() -> None:
    broken = ["raise", "loop", "exit", "regex", "abort", "nan", "none", "sleep", "text", "killed"]
    texts = [text for n, mishap in enumerate(broken, 1) for text in (str(n), mishap)]
    (rollouts,) = score(section("exact", timeout_seconds=0.5), [group(texts, "x")], mishaps)
    assert [r.reward for r in rollouts if r.status == "ok"] == list(map(float, range(1, 11)))
    assert [r.text for r in rollouts if r.status == "error"] == broken


def test_zero_on_timeout_keeps_the_other_functions() -> None:
    """The function that hangs counts as 0; those before and after it keep their values."""
    reward = section(
        {"function": "exact", "weight": 4.0},
        {"function": f"{users.__file__}:hang", "weight": 7.0},
        {"function": f"{users.__file__}:share_of_a", "weight": 2.0},
        workers=1,
        timeout_seconds=0.5,
        on_timeout="zero",
    )
    ((first, hung, last),) = score(reward, [group(["a", "aloop", "aa"], "aloop")])
    assert [first.reward, last.reward] == [7.0 + 2.0, 7.0 + 2.0]
    assert (hung.status, hung.reward) == ("ok", 4.0 + 0.0 + 2.0 * 0.2)
    assert hung.reward_parts == {"exact": 1.0, "hang": 0.0, "share_of_a": 0.2}
    assert [r.reward_limit_exceeded for r in (first, hung, last)] == [False, True, False]


def test_zero_on_timeout_does_not_hide_other_failures() -> None:
    reward = section("exact", timeout_seconds=0.5, on_timeout="zero")
    (rollouts,) = score(reward, [group(["loop", "sleep", "raise", "os._exit", "nan", "5"], "5")], mishaps)
    assert [r.status for r in rollouts] == ["ok", "ok", "error", "error", "error", "ok"]
    assert [r.reward for r in rollouts] == [0.0, 0.0, None, None, None, 6.0]


def test_a_built_in_that_hangs_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever `on_timeout` is; the run file names a built-in by its short name or its path."""
    monkeypatch.setitem(BUILTIN_REWARDS, "hanging", "tests.rewards.users.hang")
    spec = RewardFunctionSpec.of("tests.rewards.users.hang", on_timeout="error")
    assert (spec.on_timeout, RewardFunctionSpec.of("hanging").on_timeout) == ("zero", "zero")
    (rollouts,) = score(
        section("tests.rewards.users.hang", workers=1, timeout_seconds=0.5), [group(["a", "loop", "b"])]
    )
    assert [r.reward for r in rollouts] == [1.0, 0.0, 1.0]


def test_the_time_limit_applies_to_each_response() -> None:
    def slow(completion: str) -> float:
        time.sleep(0.2)
        return 1.0

    reward = section({"function": "exact", "weight": 0.0}, workers=1, timeout_seconds=1.0)
    (rollouts,) = score(reward, [group([str(n) for n in range(8)], "x")], slow)
    assert [r.reward for r in rollouts] == [1.0] * 8


def test_failed_rollouts_are_not_scored() -> None:
    whole = group(["1", "2", "3"], "1")
    broken = replace(whole.rollouts[1], status="error", error="the engine was gone")
    cut = replace(whole.rollouts[2], status="truncated")
    given = replace(whole, rollouts=(whole.rollouts[0], broken, cut))
    with Scorer(section("exact")) as scorer:
        (scored,) = scorer.score([given])
        assert scorer.score([replace(given, rollouts=(broken,))])[0].rollouts == (broken,)
        assert scorer.score([]) == []
    assert scored.rollouts[1] is broken
    assert [(r.status, r.reward) for r in scored.rollouts] == [
        ("ok", 1.0),
        ("error", None),
        ("truncated", 0.0),
    ]


def test_a_closure() -> None:
    scale = 3

    def scaled(completion: str) -> int:
        return scale * len(completion)

    (rollouts,) = score(section({"function": "exact", "weight": 0}), [group(["ab", "c"], "x")], scaled)
    assert [r.reward for r in rollouts] == [6.0, 3.0]


def test_by_source_selects_the_reward_of_each_source() -> None:
    groups = [
        group(["#### 4"], "4", name="a", source="openai/gsm8k"),
        group([r"\boxed{\frac{8}{2}}"], "4", name="b", source="HuggingFaceH4/MATH-500"),
        group(["4"], "4", name="c", source="openai/gsm9k"),
    ]
    (a,), (b,), (c,) = score(section("by_source"), groups)
    assert (a.reward, b.reward, c.reward) == (1.0, 1.0, None)
    assert c.error is not None
    assert "task 'c'" in c.error and "'openai/gsm9k'" in c.error and "openai/gsm8k" in c.error


def test_calls_from_several_threads() -> None:
    results: dict[int, list[float | None]] = {}
    with Scorer(section("math")) as scorer:

        def work(number: int) -> None:
            (scored,) = scorer.score([group([rf"\boxed{{{n}}}" for n in range(6)], str(number))])
            results[number] = [r.reward for r in scored.rollouts]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {number: [float(n == number) for n in range(6)] for number in range(4)}


def test_mistakes_are_reported_by_the_constructor() -> None:
    with pytest.raises(RewardError, match="did you mean 'gsm8k'"):
        Scorer(section("gms8k"))
    with pytest.raises(RewardError, match=r"two components are named 'exact'.*name"):
        Scorer(section("exact", "exact"))
    with pytest.raises(RewardError, match="signature"):
        Scorer(section("exact"), lambda: 1.0)


def test_function_that_only_a_worker_fails_to_load(tmp_path: Path) -> None:
    file = tmp_path / "here_only.py"
    file.write_text(f"import os\nassert os.getpid() == {os.getpid()}, 'not here'\ndef f(text): return 1.0\n")
    with (
        Scorer(section(f"{file}:f")) as scorer,
        pytest.raises(RewardError, match=r"loading .*here_only.py failed: AssertionError: not here"),
    ):
        scorer.score([group(["a"])])
    file.write_text(f"import os\nif os.getpid() != {os.getpid()}: os._exit(9)\ndef f(text): return 1.0\n")
    with (
        Scorer(section(f"{file}:f")) as scorer,
        pytest.raises(RewardError, match="while it loaded f, ended its process with exit code 9"),
    ):
        scorer.score([group(["a"])])


def test_workers_start_lazily_and_end_with_the_scorer() -> None:
    ours = psutil.Process()
    with Scorer(section("gsm8k")) as scorer:
        assert not _workers(ours)
        scorer.score([group(["#### 1"] * 10, "1")])
        first = _workers(ours)
        assert 1 <= len(first) <= 2
        scorer.score([group(["#### 1"] * 10, "1")])
        assert set(first) <= set(_workers(ours))
    gc.collect()
    assert not _workers(ours)


def test_idle_worker_that_is_killed_is_replaced() -> None:
    ours = psutil.Process()
    with Scorer(section("gsm8k", workers=1)) as scorer:
        scorer.score([group(["#### 1"], "1")])
        (supervisor,) = _workers(ours)
        (worker,) = supervisor.children()
        worker.kill()
        (scored,) = scorer.score([group(["#### 1", "#### 2"], "1")])
    assert [r.reward for r in scored.rollouts] == [1.0, 0.0]


def test_repeatedly_killed_workers_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    send = RewardWorkerProcess.send

    def killed_before(self: RewardWorkerProcess, message: object) -> bool:
        if isinstance(message, list):
            self.kill()
            self._process.wait()
        return send(self, message)

    monkeypatch.setattr(RewardWorkerProcess, "send", killed_before)
    with (
        Scorer(section("gsm8k", workers=1)) as scorer,
        pytest.raises(RewardError, match=r"11 reward worker processes died between two responses.*signal 9"),
    ):
        scorer.score([group(["#### 1"], "1")])


def test_stopped_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "GRACE_SECONDS", 0.5)

    def stops(completion: str) -> float:
        if completion == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        return 1.0

    reward = section({"function": "exact", "weight": 0}, workers=1, timeout_seconds=0.5)
    (rollouts,) = score(reward, [group(["a", "stop", "b"], "x")], stops)
    assert [r.reward for r in rollouts] == [1.0, None, 1.0]
    assert rollouts[1].error == "task 't0': the reward 'stops' took longer than 0.5 s and was killed"


class _Untakable:
    """An object that can be pickled but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("not a number",)


def test_columns_that_cannot_be_pickled() -> None:
    with (
        Scorer(section("exact")) as scorer,
        pytest.raises(RewardError, match=r"column of the tasks cannot be sent.*lock"),
    ):
        scorer.score([group(["a"], "a", column=threading.Lock())])
    with (
        Scorer(section("exact")) as scorer,
        pytest.raises(RewardError, match=r"column of the tasks cannot be unpickled.*ValueError"),
    ):
        scorer.score([group(["a"], "a", column=_Untakable())])


def _workers(parent: psutil.Process) -> list[psutil.Process]:
    """The supervisors of the workers."""
    return [p for p in parent.children() if "strop.rewards.execution.worker_main" in p.cmdline()]


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

reward = RewardConfig(functions=[{"function": "exact"}], workers=2, timeout_seconds=60.0)
with Scorer(reward, hangs) as scorer:
    scorer.score([group(["a"])])
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_remains(sent: signal.Signals) -> None:
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
        _, alive = psutil.wait_procs(children, timeout=20)
        left = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        for process in left:
            process.kill()
        assert left == []


def test_a_thousand_scores() -> None:
    groups = [group([f"so\n#### {n + k % 2}" for k in range(8)], str(n), name=str(n)) for n in range(125)]
    with Scorer(section("gsm8k")) as scorer:
        scored = scorer.score(groups)
    assert sum(r.reward or 0.0 for g in scored for r in g.rollouts) == 500
