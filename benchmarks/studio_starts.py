"""Seconds of a check, of a run's first rows and of its stop, as Studio starts them and as new interpreters.

    python benchmarks/studio_starts.py

The run is that of `strop quickstart`, on its tasks and a random model of its size. Studio's fork server is given ten
seconds for its imports, which it begins when the page with the run file is opened. The first row of a run's metrics is
the evaluation before training, the second that of step 1; SIGTERM, which the button Stop sends, comes a second later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart"
IMPORT_SECONDS = 10
Start = Callable[[Sequence[str], Path, Any], Any]
"""Starts a command in a folder with its output in a file."""


def new_interpreter(arguments: Sequence[str], folder: Path, output: Any) -> subprocess.Popen[bytes]:
    """The command as a shell starts it."""
    command = [sys.executable, "-m", "strop", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def fork(arguments: Sequence[str], folder: Path, output: Any) -> Any:
    """The command as Studio starts it."""
    from strop.studio.processes import start_strop

    return start_strop(arguments, cwd=str(folder), stdout=output.fileno(), stderr=subprocess.STDOUT)


def measure(start: Start, folder: Path) -> list[float]:
    """Seconds of a check, until the first row, until the second, and of the stop."""
    runs = folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    arguments = [str(EXAMPLE / "run.yaml"), f"output={runs}"]
    with (folder / "log").open("wb") as output:
        begin = time.perf_counter()
        code = start(["check", *arguments], folder, output).wait()
        if code:
            sys.exit(f"strop check ended with {code}: {(folder / 'log').read_text()}")
        found = [time.perf_counter() - begin]
        begin = time.perf_counter()
        process = start(["train", *arguments], folder, output)
        for rows in (1, 2):
            while sum(path.read_text().count("\n") for path in runs.rglob("metrics.jsonl")) < rows:
                if process.poll() is not None:
                    sys.exit(f"strop train ended with {process.poll()}: {(folder / 'log').read_text()}")
                time.sleep(0.02)
            found.append(time.perf_counter() - begin)
        time.sleep(1)
        begin = time.perf_counter()
        process.terminate()
        process.wait()
        return [*found, time.perf_counter() - begin]


def main() -> None:
    """Print the table."""
    os.environ["PYTHONUNBUFFERED"] = "1"  # as in every process that Studio starts
    sys.path.insert(0, str(EXAMPLE))
    from quickstart import prepare

    from strop.studio.processes import prepare_processes

    with tempfile.TemporaryDirectory() as name:
        os.environ["QUICKSTART"] = name
        prepare(Path(name), 1)
        prepare_processes()
        time.sleep(IMPORT_SECONDS)
        print("| started as | check | first row | step 1 | stop |")
        print("| --- | --- | --- | --- | --- |")
        for label, start in (("new interpreter", new_interpreter), ("fork", fork)):
            cells = " | ".join(f"{seconds:.1f}" for seconds in measure(start, Path(name)))
            print(f"| {label} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
