"""The judge, tested with a local HTTP server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.free_port import find_free_port
from strop.config.schema.judge import JudgeCallsConfig
from strop.config.schema.judge import JudgeConfig as Section
from strop.errors import RewardError
from strop.rewards.judges.judge import Judge, Judges
from strop.types import Rollout, Task
from strop.workers.event_loop_thread import gather_or_cancel
from tests.rewards.builders import group
from tests.rewards.judge_server import judge_server, says


@contextmanager
def judge(url: str, folder: Path, calls: dict[str, Any] | None = None, **section: Any) -> Iterator[Judge]:
    made = Judges(
        [Section(url=url, model="wise", **section)],
        JudgeCallsConfig(**{"backoff_seconds": 0.01, "retries": 2, **(calls or {})}),
        folder,
    )
    try:
        yield made.parts[0]
    finally:
        made.close()


def answers(*texts: str, answer: Any = None, **columns: Any) -> list[tuple[Task, Rollout]]:
    made = group(list(texts), answer, **columns)
    return [(made.task, rollout) for rollout in made.rollouts]


def score(part: Judge, pairs: list[tuple[Task, Rollout]]) -> list[float | str]:
    async def all_of_them() -> list[float | str]:
        return await gather_or_cancel([part.score_rollout(*pair) for pair in pairs])

    return asyncio.run(all_of_them())


def asked(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def test_scores_are_scaled_to_0_and_1(tmp_path: Path) -> None:
    replies = {"ant": "Fine. Score: 9", "bee": "Score: 10? No.\n**Score:** 2.5", "cat": "SCORE: 0"}

    def answer(body: dict[str, Any], _: int) -> Any:
        return says(next(reply for text, reply in replies.items() if f"\n{text}\n" in asked(body)))

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        assert score(part, answers("ant", "bee", "cat")) == [0.9, 0.25, 0.0]
    marks = {"pattern": r"(\d)", "min_score": 5.0, "max_score": 1.0}
    with judge_server(lambda *_: says("2")) as server, judge(server.url, tmp_path, **marks) as part:
        assert score(part, answers("ant")) == [0.75]


def test_request_body(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, temperature=0.5, max_tokens=7) as part:
            score(part, answers("my answer", answer="42"))
            score(part, answers("my answer"))
        with_reference, without = server.requests
        assert {**with_reference, "messages": None} == {
            "model": "wise",
            "messages": None,
            "temperature": 0.5,
            "max_tokens": 7,
        }
        for text in ("question t0", "my answer", "Reference answer:\n42"):
            assert text in asked(with_reference)
        assert "Reference" not in asked(without)
        with judge(server.url, tmp_path, prompt="{{ completion }} on {{ topic }}?") as part:
            score(part, answers("yes", topic="cats"))
        assert asked(server.requests[-1]) == "yes on cats?"


def test_a_prompt_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "ask.jinja").write_text("Is {{ completion }} right?")
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, prompt=str(tmp_path / "ask.jinja")) as part:
            score(part, answers("it"))
        assert asked(server.requests[0]) == "Is it right?"


def test_the_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISE_KEY", "abc")
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, api_key_env="WISE_KEY") as part:
            score(part, answers("it"))
        assert server.headers[0]["Authorization"] == "Bearer abc"
        monkeypatch.delenv("WISE_KEY")
        with pytest.raises(RewardError, match="variable WISE_KEY is not set"):
            judge(server.url, tmp_path, api_key_env="WISE_KEY").__enter__()


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path) as part:
            assert score(part, answers("one", "one", "two")) == [0.5] * 3
            score(part, answers("two", "three"))
        assert len(server.requests) == 3
        with judge(server.url, tmp_path) as part:  # after a restart
            assert score(part, answers("one", "two", "three")) == [0.5] * 3
        assert len(server.requests) == 3
        with judge(server.url, tmp_path, temperature=1.0) as part:  # another question
            score(part, answers("one"))
        assert len(server.requests) == 4


def test_concurrent_calls_are_limited(tmp_path: Path) -> None:
    def answer(*_: Any) -> Any:
        time.sleep(0.05)
        return says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path, {"concurrency": 3}) as part:
        score(part, answers(*map(str, range(9))))
        assert server.most_at_once == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_errors_are_retried(tmp_path: Path, status: int) -> None:
    def answer(_: Any, number: int) -> Any:
        return (status, "busy") if number < 2 else says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        assert score(part, answers("it")) == [0.5]
        assert len(server.requests) == 3


def test_unreachable_judge(tmp_path: Path) -> None:
    """Found when it is made, before anything is trained."""
    url = f"http://127.0.0.1:{find_free_port('127.0.0.1')}/v1"
    with pytest.raises(RewardError, match=r"does not respond \(.*refused.*reward\.judges") as caught:
        judge(url, tmp_path).__enter__()
    assert "\n" not in str(caught.value)


def test_judge_that_stops_responding(tmp_path: Path) -> None:
    with judge_server(lambda *_: (503, "down")) as server:
        with judge(server.url, tmp_path) as part, pytest.raises(RewardError) as caught:
            score(part, answers("one", "two"))
        assert "did not respond in 3 attempts; the last one: 503 Service Unavailable: 'down'" in str(
            caught.value
        )


def test_judge_that_exceeds_the_time_limit(tmp_path: Path) -> None:
    is_over = threading.Event()

    def answer(*_: Any) -> Any:
        is_over.wait(60)
        return says("Score: 5")

    with judge_server(answer) as server:
        calls = {"timeout_seconds": 1.0, "retries": 0}
        with judge(server.url, tmp_path, calls) as part, pytest.raises(RewardError, match="timed out"):
            score(part, answers("it"))
        is_over.set()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_permanent_errors_are_not_retried(tmp_path: Path, status: int) -> None:
    with judge_server(lambda *_: (status, "no such model")) as server:
        with judge(server.url, tmp_path) as part, pytest.raises(RewardError, match="no such model"):
            score(part, answers("it"))
        assert len(server.requests) == 1


def test_rejected_request_fails_one_rollout(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], _: int) -> Any:
        return (400, "too long") if "long" in asked(body) else says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        first, second = score(part, answers("long", "short"))
        assert second == 0.5
        assert first == "was rejected by the endpoint: 400 Bad Request: 'too long'"


@pytest.mark.parametrize(
    ("reply", "said"),
    [("It is good.", "gave no score"), ("Score: 11", "not between 0 and 10"), ("Score: -1", "not between")],
)
def test_replies_without_a_valid_score_fail_one_rollout(tmp_path: Path, reply: str, said: str) -> None:
    def answer(body: dict[str, Any], _: int) -> Any:
        return says(reply if "odd" in asked(body) else "Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        first, second = score(part, answers("odd", "even"))
        assert second == 0.5
        assert isinstance(first, str) and said in first and reply in first


def test_task_without_a_column_of_the_prompt(tmp_path: Path) -> None:
    prompt = "{{ completion }} on {{ topic }}?"
    with (
        judge_server(lambda *_: says("Score: 5")) as server,
        judge(server.url, tmp_path, prompt=prompt) as part,
    ):
        (broken,) = score(part, answers("yes", theme="cats"))
    assert isinstance(broken, str) and "'topic' is undefined" in broken and "theme" in broken


@pytest.mark.parametrize("budget", [{"max_calls": 3}, {"max_tokens": 25}])
def test_the_budget(tmp_path: Path, budget: dict[str, int]) -> None:
    """Ten tokens a call: a fourth one is too many either way, after a restart too."""
    calls = {"concurrency": 1, **budget}
    with judge_server(lambda *_: says("Score: 5", 10)) as server:
        with judge(server.url, tmp_path, calls) as part:
            score(part, answers("one", "two"))
        with judge(server.url, tmp_path, calls) as part:
            score(part, answers("one", "two", "three"))
            with pytest.raises(RewardError, match=r"used up: .* after 3 calls and 30 tokens"):
                score(part, answers("four"))
        with judge(server.url, tmp_path) as part:
            assert score(part, answers("three", "four")) == [0.5, 0.5]
        assert len(server.requests) == 4


def test_token_limit_requires_reported_usage(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5", None)) as server:
        with (
            judge(server.url, tmp_path, {"max_tokens": 9}) as part,
            pytest.raises(RewardError, match="does not report the tokens"),
        ):
            score(part, answers("it"))
        with judge(server.url, tmp_path) as part:
            assert score(part, answers("it")) == [0.5]


def test_endpoint_without_the_protocol(tmp_path: Path) -> None:
    with (
        judge_server(lambda *_: (200, "<html>hello</html>")) as server,
        judge(server.url, tmp_path) as part,
        pytest.raises(RewardError, match="does not speak OpenAI's"),
    ):
        score(part, answers("it"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"prompt": "{{ completion"}, "not a valid Jinja template"),
        ({"prompt": "nowhere.jinja"}, "does not exist"),
        ({"pattern": "("}, "not a valid regular expression"),
        ({"pattern": r"(\d)/(\d)"}, "has 2 groups"),
    ],
)
def test_invalid_sections(tmp_path: Path, section: dict[str, str], said: str) -> None:
    with pytest.raises(RewardError, match=said):
        judge("http://127.0.0.1:1/v1", tmp_path, **section).__enter__()


def test_empty_score_range() -> None:
    with pytest.raises(ValidationError, match="min_score and max_score are both 3"):
        Section(url="http://x/v1", model="wise", min_score=3, max_score=3)


def test_cache_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RewardError, match="cannot be stored"):
        judge("http://127.0.0.1:1/v1", tmp_path / "file").__enter__()
