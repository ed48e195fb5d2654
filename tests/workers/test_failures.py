"""Failure messages, exits and restarts of child processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from strop.errors import DataError, InferenceError
from strop.workers.child_process import ErrorReport, RestartBudget, describe_exit, spawn_module
from strop.workers.network import LOOPBACK, interface_of, source_address
from strop.workers.waiting import wait_until
from strop.workers.worker import RemoteFailure


def test_an_error_of_strops_keeps_its_class_and_text() -> None:
    error = RemoteFailure.from_exception(DataError("no rows")).to_error("engine-0", InferenceError)
    assert type(error) is DataError and str(error) == "no rows"


def test_any_other_error_comes_with_the_senders_name_and_its_traceback() -> None:
    try:
        int("x")
    except ValueError as cause:
        error = RemoteFailure.from_exception(cause).to_error("engine-0", InferenceError)
    assert type(error) is InferenceError
    assert str(error).startswith("engine-0 failed:\nTraceback") and "ValueError: invalid literal" in str(
        error
    )


@pytest.mark.parametrize(("code", "text"), [(3, "with exit code 3"), (-9, "by signal 9 (Killed)")])
def test_exits_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_module_writes_its_error_into_the_report() -> None:
    report = ErrorReport()
    process = spawn_module("tests.workers.write_error", str(report.fileno()), pass_fds=[report.fileno()])
    assert process.wait(600) == 5
    assert report.read() == "what went wrong"
    report.close()


def test_restarts_are_counted_up_to_the_limit() -> None:
    budget = RestartBudget(2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    assert str(budget) == "restart 2 of at most 2"


def test_a_condition_is_polled_until_the_timeout() -> None:
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), "an answer", timeout_seconds=600, interval_seconds=0.001)
    assert not wait_until(lambda: False, "nothing", timeout_seconds=0.01, interval_seconds=0.001)


def test_addresses_of_this_machine() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        assert source_address(LOOPBACK, server.getsockname()[1]) == LOOPBACK
    if sys.platform == "linux":
        assert interface_of(LOOPBACK) == "lo"
    assert interface_of("192.0.2.1") is None


def test_a_local_workers_main_module_imports_little() -> None:
    code = (
        "import sys, strop.workers.local_worker_main; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
