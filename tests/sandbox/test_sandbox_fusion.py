"""The client of a SandboxFusion server, against a stand-in that has the original's requests and answers."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from strop.config.schema.reward import SandboxFusionConfig
from strop.errors import SandboxError
from strop.rewards.builtin.code import code_reward
from strop.sandbox import sandbox_fusion
from strop.sandbox.protocol import IsolationLevel, Program
from strop.sandbox.registry import open_sandbox
from tests.sandbox.sandbox_fusion_server import OUTPUT_BYTES, request_faults, serve


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(sandbox_fusion, "_BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    with serve(concurrency=2) as server:
        yield server


@pytest.fixture
def config(server):
    return SandboxFusionConfig(url=server.url, timeout_seconds=20, memory_mb=256, retries=2)


@pytest.fixture
def sandbox(config):
    return open_sandbox(config)


def test_programs_on_a_server(server, sandbox):
    assert sandbox.level is IsolationLevel.REMOTE
    result = sandbox.run(Program("print(input())", "a\nb"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("a\n", 0, True)
    (request,) = server.requests
    assert request_faults(request) == []
    assert (request["run_timeout"], request["memory_limit_MB"], request["language"]) == (20, 256, "python")
    result = sandbox.run(Program("print(1); import sys; sys.exit(0)"), 30)
    assert (result.stdout, result.exit_code, result.completed) == ("1\n", 0, False)
    result = sandbox.run(Program("x = 1 / 0"), 30)
    assert (result.exit_code, result.completed) == (1, False) and "ZeroDivisionError" in result.stderr
    result = sandbox.run(Program("while True: pass"), 0.5)
    assert (result.stopped, result.exit_code) == ("time limit", None)


@pytest.mark.parametrize(
    ("program", "reward"), [("x = 1", 1.0), ("x = 2", 0.0), ("import sys; sys.exit()", 0.0), ("print(", 0.0)]
)
def test_the_reward_on_a_server(config, program, reward):
    assert code_reward(f"```python\n{program}\n```", ["assert x == 1"], sandbox=config) == reward


def test_the_server_may_cut_the_output_of_a_program_that_ran_to_its_end(sandbox):
    result = sandbox.run(Program(f"print('x' * {OUTPUT_BYTES} * 2)"), 30)
    assert len(result.stdout) == OUTPUT_BYTES and result.completed and result.exit_code == 0


@pytest.mark.parametrize("source", ["print('\ud800')", "x = '\x00'", "print('\u2028', end='')"])
def test_text_that_a_file_cannot_hold_fails_the_program_alone(sandbox, source):
    assert sandbox.run(Program(source, source), 30).exit_code is not None


@pytest.mark.parametrize("failures", [[503, 500], ["SandboxError", 504]])
def test_answers_of_an_overloaded_server_are_requested_again(server, sandbox, failures):
    server.failures[:] = failures
    assert sandbox.run(Program("print(1)"), 30).completed


def test_the_pause_that_the_server_asks_for_is_kept(server, sandbox, monkeypatch):
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(sandbox_fusion, "time", clock)
    server.failures[:] = [429, 503]
    assert sandbox.run(Program("print(1)"), 30).completed
    assert 1.0 <= pauses[0] <= 1.2 and 0 < pauses[1] < 1, "Retry-After: 1, and none"


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("SandboxError", r"runs no program: it reports SandboxError: .*no \\x1b\[2J memory"),
        (500, r"HTTP status 500: no \\x1b\[2J capacity"),
    ],
)
def test_a_server_that_runs_no_program(server, sandbox, failure, message):
    server.failures[:] = [failure] * 3
    with pytest.raises(SandboxError, match=message):
        sandbox.run(Program("pass\n" * 200), 30)


@pytest.mark.parametrize(
    ("elsewhere", "message"),
    [
        (None, r"HTTP status 404: Not Found \(the address .* ends in /run_code\)"),
        ("http://127.0.0.1:9/run_code", r"does not answer \(URLError: "),
    ],
)
def test_a_wrong_address(server, elsewhere, message):
    config = SandboxFusionConfig(url=elsewhere or server.url.removesuffix("/run_code"), retries=1)
    with pytest.raises(SandboxError, match=message):
        open_sandbox(config).run(Program(""), 30)


def test_a_request_of_the_wrong_form_is_not_repeated(server, config):
    client = sandbox_fusion.SandboxFusion(config)
    with pytest.raises(SandboxError, match=r"HTTP status 422: .*'language'.*Input should be 'python'"):
        client._answer({"code": "", "language": "cobol"}, time.monotonic() + 30)
    assert server.requests == []


def test_a_server_that_is_silent_is_an_error_and_no_failed_program(monkeypatch):
    """Before the reward's own time limit, after which a built-in reward counts as 0."""
    monkeypatch.setattr(sandbox_fusion, "_ROUND_TRIP_SECONDS", 0.2)
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = SandboxFusionConfig(url=f"http://127.0.0.1:{silent.getsockname()[1]}/run_code")
        with pytest.raises(SandboxError, match="does not answer"):
            code_reward("x = 1", ["assert x == 1"], sandbox=config, budget_seconds=0.5)


def test_the_server_queues_what_exceeds_its_concurrency(server, sandbox):
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: sandbox.run(Program(f"print({n})"), 30).stdout, range(8)))
    assert results == [f"{n}\n" for n in range(8)]
    assert server.most_running == 2
