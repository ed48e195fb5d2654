"""Process-wide settings of the tests, their order, and the table of what was skipped."""

from __future__ import annotations

import collections
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# As `make test` sets it: sums over a different number of threads differ in their last bits, and some tests compare a
# run in this process bit for bit with one in processes of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from strop.workers.fork_server import fork_server, import_time_variables

# An example takes longer than Hypothesis' 200 ms on a machine that does other work too.
settings.register_profile("strop", deadline=None)
settings.load_profile("strop")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts `make test &` makes it ignore SIGINT, and the processes that tests interrupt inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _process_stays_as_it_was() -> Iterator[None]:
    """A test that leaves this process in another directory changes what relative paths of later tests name; one that
    leaves variables behind that libraries read when they are imported makes each later child a new interpreter."""
    folder, variables = Path.cwd(), import_time_variables(os.environ)
    yield
    left, changed = Path.cwd(), import_time_variables(os.environ).items() ^ variables.items()
    os.chdir(folder)
    assert left == folder, f"the test left the process in {left}; use monkeypatch.chdir"
    assert not changed, f"the test left environment variables: {changed}; use monkeypatch.setenv"


def pytest_configure(config: pytest.Config) -> None:
    """Raises pytest.UsageError where pytest-xdist 3.8, which writes groups into `_nodeid`, could not group tests."""
    if config.getoption("dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        raise pytest.UsageError(
            "this pytest loses pytest-xdist's groups: `make .venv/dev` installs one that does not"
        )


def pytest_sessionstart() -> None:
    """Start the server of `tests.command` before a test changes the environment, whose first state it has."""
    fork_server(dict(os.environ))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that no long one is left at the end; fast tests of a file share a process, which builds
    their fixtures once. Slow ones share one where they name an `xdist_group`."""
    for item in items:
        if not item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of later garbage collections, which would scan them each time."""
    gc.freeze()


def _rank(item: pytest.Item) -> int:
    if not item.get_closest_marker("slow"):
        return 2
    return 0 if item.get_closest_marker("xdist_group") else 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was skipped and why: a skipped test has proved nothing."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")].append(report.nodeid)
    if not reasons:
        return
    terminalreporter.section("not run on this machine")
    terminalreporter.write_line("tests  reason (a file that was skipped as a whole counts as one test)")
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        files = sorted({name.split("::")[0] for name in names})
        shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")
        terminalreporter.write_line(f"{len(names):5}  {reason}: {shown}")
