"""The judge, against a real HTTP server on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from strop.config.schema.judge import Calls
from strop.config.schema.judge import Judge as Section
from strop.errors import RewardError
from strop.rewards.judge import Judge, Judges
from strop.types import Rollout, Task
from tests.rewards.builders import group
from tests.rewards.judge_server import judge_server, says


@contextmanager
def judge(url: str, folder: Path, calls: dict[str, Any] | None = None, **section: Any) -> Iterator[Judge]:
    made = Judges(
        [Section(url=url, model="wise", **section)],
        Calls(**{"backoff_seconds": 0.01, "retries": 2, **(calls or {})}),
        folder,
    )
    try:
        yield made.parts[0]
    finally:
        made.close()


def answers(*texts: str, answer: Any = None, **columns: Any) -> list[tuple[Task, Rollout]]:
    made = group(list(texts), answer, **columns)
    return [(made.task, rollout) for rollout in made.rollouts]


def asked(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def test_scores_are_brought_to_between_0_and_1(tmp_path: Path) -> None:
    replies = {"ant": "Fine. Score: 9", "bee": "Score: 10? No.\n**Score:** 2.5", "cat": "SCORE: 0"}

    def answer(body: dict[str, Any], _: int) -> Any:
        return says(next(reply for text, reply in replies.items() if f"\n{text}\n" in asked(body)))

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        assert part.score(answers("ant", "bee", "cat")) == [0.9, 0.25, 0.0]
    marks = {"pattern": r"(\d)", "worst": 5.0, "best": 1.0}
    with judge_server(lambda *_: says("2")) as server, judge(server.url, tmp_path, **marks) as part:
        assert part.score(answers("ant")) == [0.75]


def test_what_is_asked(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, temperature=0.5, max_tokens=7) as part:
            part.score(answers("my answer", answer="42"))
            part.score(answers("my answer"))
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
            part.score(answers("yes", topic="cats"))
        assert asked(server.requests[-1]) == "yes on cats?"


def test_a_prompt_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "ask.jinja").write_text("Is {{ completion }} right?")
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, prompt=str(tmp_path / "ask.jinja")) as part:
            part.score(answers("it"))
        assert asked(server.requests[0]) == "Is it right?"


def test_the_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WISE_KEY", "abc")
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path, key_variable="WISE_KEY") as part:
            part.score(answers("it"))
        assert server.headers[0]["Authorization"] == "Bearer abc"
        monkeypatch.delenv("WISE_KEY")
        with pytest.raises(RewardError, match="variable WISE_KEY is not set"):
            judge(server.url, tmp_path, key_variable="WISE_KEY").__enter__()


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5")) as server:
        with judge(server.url, tmp_path) as part:
            assert part.score(answers("one", "one", "two")) == [0.5] * 3
            part.score(answers("two", "three"))
        assert len(server.requests) == 3
        with judge(server.url, tmp_path) as part:  # after a restart
            assert part.score(answers("one", "two", "three")) == [0.5] * 3
        assert len(server.requests) == 3
        with judge(server.url, tmp_path, temperature=1.0) as part:  # another question
            part.score(answers("one"))
        assert len(server.requests) == 4


def test_calls_go_out_side_by_side_and_no_more_than_allowed(tmp_path: Path) -> None:
    def answer(*_: Any) -> Any:
        time.sleep(0.05)
        return says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path, {"concurrency": 3}) as part:
        part.score(answers(*map(str, range(9))))
        assert server.most_at_once == 3


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(tmp_path: Path, status: int) -> None:
    def answer(_: Any, number: int) -> Any:
        return (status, "busy") if number < 2 else says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        assert part.score(answers("it")) == [0.5]
        assert len(server.requests) == 3


def test_a_judge_that_is_not_there(tmp_path: Path) -> None:
    """Found when it is made, before anything is trained."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(RewardError, match=r"does not answer \(.*refused.*reward\.judges") as caught:
        judge(url, tmp_path).__enter__()
    assert "\n" not in str(caught.value)


def test_a_judge_that_stops_answering(tmp_path: Path) -> None:
    with judge_server(lambda *_: (503, "down")) as server:
        with judge(server.url, tmp_path) as part, pytest.raises(RewardError) as caught:
            part.score(answers("one", "two"))
        assert "did not answer in 3 tries; the last: 503 Service Unavailable: 'down'" in str(caught.value)


def test_a_judge_that_is_too_slow(tmp_path: Path) -> None:
    def answer(*_: Any) -> Any:
        time.sleep(0.5)
        return says("Score: 5")

    with judge_server(answer) as server:
        calls = {"timeout_seconds": 0.05, "retries": 1}
        with judge(server.url, tmp_path, calls) as part, pytest.raises(RewardError, match="timed out"):
            part.score(answers("it"))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_will_never_be_answered_is_not_tried_again(tmp_path: Path, status: int) -> None:
    with judge_server(lambda *_: (status, "no such model")) as server:
        with judge(server.url, tmp_path) as part, pytest.raises(RewardError, match="no such model"):
            part.score(answers("it"))
        assert len(server.requests) == 1


def test_one_refused_request_breaks_one_rollout(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], _: int) -> Any:
        return (400, "too long") if "long" in asked(body) else says("Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        first, second = part.score(answers("long", "short"))
        assert second == 0.5
        assert first == "was refused by the endpoint: 400 Bad Request: 'too long'"


@pytest.mark.parametrize(
    ("reply", "said"),
    [("It is good.", "gave no score"), ("Score: 11", "not between 0 and 10"), ("Score: -1", "not between")],
)
def test_replies_that_are_no_scores_break_that_rollout(tmp_path: Path, reply: str, said: str) -> None:
    def answer(body: dict[str, Any], _: int) -> Any:
        return says(reply if "odd" in asked(body) else "Score: 5")

    with judge_server(answer) as server, judge(server.url, tmp_path) as part:
        first, second = part.score(answers("odd", "even"))
        assert second == 0.5
        assert isinstance(first, str) and said in first and reply in first


def test_a_task_without_a_column_that_the_prompt_wants(tmp_path: Path) -> None:
    prompt = "{{ completion }} on {{ topic }}?"
    with (
        judge_server(lambda *_: says("Score: 5")) as server,
        judge(server.url, tmp_path, prompt=prompt) as part,
    ):
        (broken,) = part.score(answers("yes", theme="cats"))
    assert isinstance(broken, str) and "'topic' is undefined" in broken and "theme" in broken


@pytest.mark.parametrize("budget", [{"max_calls": 3}, {"max_tokens": 25}])
def test_the_budget(tmp_path: Path, budget: dict[str, int]) -> None:
    """Ten tokens a call: a fourth one is too many either way, after a restart too."""
    calls = {"concurrency": 1, **budget}
    with judge_server(lambda *_: says("Score: 5", 10)) as server:
        with judge(server.url, tmp_path, calls) as part:
            part.score(answers("one", "two"))
        with judge(server.url, tmp_path, calls) as part:
            part.score(answers("one", "two", "three"))
            with pytest.raises(RewardError, match=r"used up: .* after 3 calls and 30 tokens"):
                part.score(answers("four"))
        with judge(server.url, tmp_path) as part:
            assert part.score(answers("three", "four")) == [0.5, 0.5]
        assert len(server.requests) == 4


def test_a_bound_on_tokens_needs_their_number(tmp_path: Path) -> None:
    with judge_server(lambda *_: says("Score: 5", None)) as server:
        with (
            judge(server.url, tmp_path, {"max_tokens": 9}) as part,
            pytest.raises(RewardError, match="does not say how many tokens"),
        ):
            part.score(answers("it"))
        with judge(server.url, tmp_path) as part:
            assert part.score(answers("it")) == [0.5]


def test_an_endpoint_that_is_none(tmp_path: Path) -> None:
    with (
        judge_server(lambda *_: (200, "<html>hello</html>")) as server,
        judge(server.url, tmp_path) as part,
        pytest.raises(RewardError, match="does not speak OpenAI's"),
    ):
        part.score(answers("it"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"prompt": "{{ completion"}, "no Jinja text"),
        ({"prompt": "nowhere.jinja"}, "there is no file"),
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": r"(\d)/(\d)"}, "has 2 groups"),
    ],
)
def test_bad_sections(tmp_path: Path, section: dict[str, str], said: str) -> None:
    with pytest.raises(RewardError, match=said):
        judge("http://127.0.0.1:1/v1", tmp_path, **section).__enter__()


def test_a_range_without_extent() -> None:
    with pytest.raises(ValidationError, match="worst and best are both 3"):
        Section(url="http://x/v1", model="wise", worst=3, best=3)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RewardError, match="cannot be kept"):
        judge("http://127.0.0.1:1/v1", tmp_path / "file").__enter__()
