"""The judge, tested with a local HTTP server."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from strop.config.schema.reward import JudgeCallsConfig
from strop.config.schema.reward import JudgeConfig as Section
from strop.errors import RewardError
from strop.rewards.judges.judge import Judge, Judges
from strop.types import Rollout, Task
from strop.workers.threads import gather_or_cancel
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


@contextmanager
def judged(folder: Path, reply: Any, calls: dict[str, Any] | None = None, **section: Any) -> Iterator[Any]:
    """A judge's server that gives a reply, or calls a function for it, and the judge."""
    answer = reply if callable(reply) else lambda *_: reply if isinstance(reply, tuple) else says(reply)
    with judge_server(answer) as server, judge(server.url, folder, calls, **section) as part:
        yield server, part


def score(part: Judge, pairs: list[tuple[Task, Rollout]]) -> list[float | str]:
    async def all_of_them() -> list[float | str]:
        return await gather_or_cancel([part.score_rollout(*pair) for pair in pairs])

    return asyncio.run(all_of_them())


def asked(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def test_scores_are_scaled_to_0_and_1(tmp_path):
    replies = {"ant": "Fine. Score: 9", "bee": "Score: 10? No.\n**Score:** 2.5", "cat": "SCORE: 0"}

    def answer(body: dict[str, Any], _: int) -> Any:
        return says(next(reply for text, reply in replies.items() if f"\n{text}\n" in asked(body)))

    with judged(tmp_path, answer) as (_, part):
        assert score(part, answers("ant", "bee", "cat")) == [0.9, 0.25, 0.0]
    with judged(tmp_path, "2", pattern=r"(\d)", min_score=5.0, max_score=1.0) as (_, part):
        assert score(part, answers("ant")) == [0.75]


def test_a_reply_with_half_a_surrogate_pair_and_an_impossible_count_is_stored(tmp_path):
    with judged(tmp_path, says("\ud800 Score: 5", 2**70)) as (_, part):
        assert score(part, answers("\ud800")) == [0.5]


def test_request_body(tmp_path):
    with judged(tmp_path, "Score: 5", temperature=0.5, max_tokens=7) as (server, part):
        score(part, answers("my answer", answer="42"))
        score(part, answers("my answer"))
    with_reference, without = server.requests
    for text in ("question t0", "my answer", "Reference answer:\n42"):
        assert text in asked(with_reference)
    assert "Reference" not in asked(without)
    del with_reference["messages"]
    assert with_reference == {"model": "wise", "temperature": 0.5, "max_tokens": 7}


@pytest.mark.parametrize("in_a_file", [False, True])
def test_the_prompt_is_the_users(tmp_path, in_a_file):
    prompt, file = "{{ completion }} on {{ topic }}?", tmp_path / "ask.jinja"
    file.write_text(prompt)
    with judged(tmp_path, "Score: 5", prompt=str(file) if in_a_file else prompt) as (server, part):
        score(part, answers("yes", topic="cats"))
        (broken,) = score(part, answers("yes", theme="cats"))
    assert asked(server.requests[0]) == "yes on cats?"
    assert isinstance(broken, str) and "'topic' is undefined" in broken and "theme" in broken


def test_the_key_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("WISE_KEY", "abc")
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, api_key_env="WISE_KEY") as part:
            score(part, answers("it"))
        assert server.headers[0]["Authorization"] == "Bearer abc"
        monkeypatch.delenv("WISE_KEY")
        with pytest.raises(RewardError, match="variable WISE_KEY is not set"):
            judge(server.url, tmp_path, api_key_env="WISE_KEY").__enter__()


def test_the_same_question_is_asked_once(tmp_path):
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


def test_concurrent_calls_are_limited(tmp_path):
    """Three calls meet; each of nine has its turn."""
    three = threading.Barrier(3)

    def answer(*_: Any) -> Any:
        three.wait(60)
        return says("Score: 5")

    with judged(tmp_path, answer, {"concurrency": 3}) as (server, part):
        assert score(part, answers(*map(str, range(9)))) == [0.5] * 9
        assert server.most_at_once == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_errors_are_retried(tmp_path, status):
    def answer(_: Any, number: int) -> Any:
        return (status, "busy") if number < 2 else says("Score: 5")

    with judged(tmp_path, answer) as (server, part):
        assert score(part, answers("it")) == [0.5]
        assert len(server.requests) == 3


def test_unreachable_judge(tmp_path):
    """Found when it is made, before anything is trained. The port is bound, but nobody listens on it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
        with pytest.raises(RewardError, match=r"does not respond \(.*refused.*reward\.judges") as caught:
            judge(url, tmp_path).__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "requests", "message"),
    [
        ((503, "down"), 3, "did not respond in 3 attempts; the last one: 503 Service Unavailable: 'down'"),
        ((401, "no such model"), 1, "no such model"),
        ((403, "no such model"), 1, "no such model"),
        ((404, "no such model"), 1, "no such model"),
        ((200, "<html>hello</html>"), 1, "does not speak OpenAI's"),
        ((200, "[" * 100_000), 1, "does not speak OpenAI's"),
        (
            (200, {"choices": [{"message": {"content": [{"text": "Score: 5"}]}}]}),
            1,
            "does not speak OpenAI's",
        ),
    ],
)
def test_a_judge_that_does_not_answer_ends_the_run(tmp_path, reply, requests, message):
    """Only errors that may pass are retried."""
    with judged(tmp_path, reply) as (server, part), pytest.raises(RewardError, match=message):
        score(part, answers("one"))
    assert len(server.requests) == requests


def test_judge_that_exceeds_the_time_limit(tmp_path):
    is_over = threading.Event()

    def answer(*_: Any) -> Any:
        is_over.wait(60)
        return says("Score: 5")

    calls = {"timeout_seconds": 1.0, "retries": 0}
    with judged(tmp_path, answer, calls) as (_, part):
        with pytest.raises(RewardError, match=r"timed out|no complete answer in 1 s"):
            score(part, answers("it"))
        is_over.set()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((400, "too long"), r"^was rejected by the endpoint: 400 Bad Request: 'too long'$"),
        (says("It is good."), "gave no score.*It is good."),
        (says("Score: 11"), "not between 0 and 10.*Score: 11|Score: 11.*not between 0 and 10"),
        (says("Score: -1"), "not between.*Score: -1|Score: -1.*not between"),
    ],
)
def test_a_rejected_request_and_a_reply_without_a_valid_score_fail_one_rollout(tmp_path, reply, message):
    def answer(body: dict[str, Any], _: int) -> Any:
        return reply if "odd" in asked(body) else says("Score: 5")

    with judged(tmp_path, answer) as (_, part):
        first, second = score(part, answers("odd", "even"))
    assert second == 0.5
    assert isinstance(first, str) and re.search(message, first), first


@pytest.mark.parametrize("budget", [{"max_calls": 3}, {"max_tokens": 25}])
def test_the_budget(tmp_path, budget):
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


def test_token_limit_requires_reported_usage(tmp_path):
    reply = says("Score: 5", None)
    error = pytest.raises(RewardError, match="does not report the tokens")
    with judged(tmp_path, reply, {"max_tokens": 9}) as (_, part), error:
        score(part, answers("it"))
    with judged(tmp_path, reply) as (_, part):
        assert score(part, answers("it")) == [0.5]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"prompt": "{{ completion"}, "not a valid Jinja template"),
        ({"prompt": "nowhere.jinja"}, "does not exist"),
        ({"pattern": "("}, "not a valid regular expression"),
        ({"pattern": r"(\d)/(\d)"}, "has 2 groups"),
    ],
)
def test_invalid_sections(tmp_path, section, said):
    with pytest.raises(RewardError, match=said):
        judge("http://127.0.0.1:1/v1", tmp_path, **section).__enter__()


def test_empty_score_range():
    with pytest.raises(ValidationError, match="min_score and max_score are both 3"):
        Section(url="http://x/v1", model="wise", min_score=3, max_score=3)


def test_cache_folder_that_is_not_writable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RewardError, match="cannot be stored"):
        judge("http://127.0.0.1:1/v1", tmp_path / "file").__enter__()
