"""Commands in processes of their own: what they import, interrupts (Ctrl-C), a terminal, and an installed wheel."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from strop.cli import main as cli_main
from strop.cli import start
from strop.config.load.loader import load_run
from strop.workers.child_process import ChildProcess
from tests.cases import nightly
from tests.command import start_strop

ROOT = Path(__file__).parents[2]
HEAVY = {"datasets", "jinja2", "numpy", "peft", "pyarrow", "ray", "rich.console", "sympy", "tensorboard"}
HEAVY |= {"torch", "transformers"}
"""Modules that take long to import; `benchmarks/startup.py` measures the time of the commands."""
VERL = "verl ppo --explain algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "imported", "status"),
    [
        ("--help", "", 0),
        ("explain run.yaml trainer.tasks_per_step=8", "", 0),
        # a tokenizer on this machine encodes the first prompts, without torch; one of the Hub is not loaded
        ("check run.yaml", "jinja2 numpy pyarrow transformers", 0),
        ("check run.yaml model.path=owner/model", "numpy pyarrow", 0),
        ("check run.yaml modl.path=x", "", 2),
        *nightly(
            ("convert run.yaml --to strop", "", 0),
            (VERL, "", 0),
            ("keys verl", "", 0),
            ("verl ppo data.train_batchsize=3", "", 2),
            ("keys trinityy", "", 2),
        ),
    ],
)
def test_a_command_imports_no_more_than_it_needs(
    run_file: Path, words: str, imported: str, status: int
) -> None:
    """Each is a process of the entry point; a mistake is one paragraph, without a traceback."""
    command = [sys.executable, "-X", "importtime", "-m", "strop", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=run_file.parent)
    lines = done.stderr.splitlines()
    times = [line for line in lines if line.startswith("import time:")]
    found = HEAVY & {line.rpartition("|")[2].strip() for line in times}
    assert found == set(imported.split()) and done.returncode == status
    said = [line for line in lines if line not in times and not line.startswith("Converted to ")]
    assert (said == []) if status == 0 else (len(said) == 1 and said[0].startswith("strop: "))
    assert bool(done.stdout) == (status == 0)


def test_a_memory_limit_that_is_too_small_for_a_library_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under `ulimit -v 1000000`."""

    def load() -> None:
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")

    monkeypatch.setattr(cli_main, "app", load)
    with pytest.raises(SystemExit, match="1"):
        start.main()
    assert "lack of memory (libtorch_cpu.so" in capsys.readouterr().err


def test_an_environment_whose_file_names_are_no_utf8_is_named(run_file: Path) -> None:
    command = [sys.executable, "-m", "strop", "explain", str(run_file)]
    for utf8, said in (("0", "strop: File names are ascii .* Set PYTHONUTF8=1\\.\\n"), ("1", "")):
        env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0 and re.fullmatch(said, done.stderr)


REWARD = """
import time
from pathlib import Path
from typing import Any

def score(completion, answer):
    Path("reached").touch()
    time.sleep(1200)
"""


@pytest.fixture
def sleeping(run_file: Path) -> Path:
    """Folder of a run whose reward function creates the file `reached` and sleeps, and whose `run.yaml` is a fifo."""
    folder = run_file.parent
    (folder / "mine.py").write_text(REWARD)
    values = yaml.safe_load(run_file.read_text())
    values["data"] |= {"eval": [{"name": "sums", "path": "train.jsonl"}], "max_response_tokens": 4}
    values["trainer"] = {"duration": "1 steps", "tasks_per_step": 1}
    values |= {"reward": {"functions": [{"function": "mine.py:score"}], "timeout_seconds": 1000}}
    (folder / "kept.yaml").write_text(yaml.safe_dump(values))
    (folder / "prompts.jsonl").write_text((folder / "train.jsonl").read_text() * 400)
    run_file.unlink()
    os.mkfifo(run_file)
    return folder


def interrupt(
    folder: Path, *words: str, ready: Callable[[], bool], start: Callable[..., ChildProcess]
) -> tuple[int, str]:
    """Start a command in a process group, and interrupt the group when it is ready; returns code and stderr."""
    with (folder / "errors").open("w+") as errors:
        process = start(*words, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while not ready():
                assert process.poll() is None, (folder / "errors").read_text()
                time.sleep(0.05)
            # Python notices a signal right before a blocking system call only with the next one, which is sent then.
            while process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
        finally:
            process.kill()
    return process.wait(), (folder / "errors").read_text()


def start_interpreter(*words: str, **options: Any) -> ChildProcess:
    """`strop` in a new interpreter, which has imported nothing."""
    return subprocess.Popen([sys.executable, "-m", "strop", *words], start_new_session=True, **options)


@pytest.mark.parametrize("command", ["train", *nightly("evaluate")])
def test_an_interrupt_while_a_reward_function_runs(sleeping: Path, command: str) -> None:
    code, errors = interrupt(
        sleeping, command, "kept.yaml", ready=(sleeping / "reached").exists, start=start_strop
    )
    assert code == 130
    assert errors.startswith("strop: ") and len(errors.splitlines()) == 1


def opened(fifo: Path) -> int | None:
    """Descriptor of a fifo that a process reads, else None."""
    with suppress(OSError):  # ENXIO: no process reads the fifo yet
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    return None


@pytest.mark.parametrize(
    "words",
    [
        "explain run.yaml",
        *nightly(
            "check run.yaml",
            "convert run.yaml --to verl",
            "train run.yaml",
            "generate run.yaml --prompts train.jsonl --out out.parquet",
        ),
    ],
)
def test_an_interrupt_while_the_configuration_is_read(sleeping: Path, words: str) -> None:
    held: list[int] = []

    def ready() -> bool:
        held.extend(filter(None, [opened(sleeping / "run.yaml")]))
        return bool(held)

    code, errors = interrupt(sleeping, *words.split(), ready=ready, start=start_interpreter)
    os.close(held[0])
    assert (code, errors) == (130, "strop: Interrupted.\n")


def test_an_interrupt_while_responses_are_generated(sleeping: Path) -> None:
    """It comes while torch is imported, the model is loaded, or responses are sampled."""

    def ready() -> bool:
        if (descriptor := opened(sleeping / "run.yaml")) is None:
            return False
        os.write(descriptor, (sleeping / "kept.yaml").read_bytes())
        os.close(descriptor)
        return True

    words = ["generate", "run.yaml", "--prompts", "prompts.jsonl", "--out", "out.parquet"]
    code, errors = interrupt(sleeping, *words, ready=ready, start=start_interpreter)
    assert code == 130
    assert errors.startswith("strop: ") and len(errors.splitlines()) == 1


def test_init_asks_in_a_terminal(tmp_path: Path) -> None:
    """In a real pseudo-terminal: wrong answers are asked again, with what would be right."""
    rows = [{"question": f"What is {n} + 1?", "solution": str(n + 1)} for n in range(20)]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = ["owner/model", "qa.jsonl", "questions", "question", "solution", "exakt", "exact", "", "cpu"]
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "strop", "init"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    started = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment
    )
    os.close(theirs)
    said, waiting = "", list(answers)
    with suppress(OSError):  # the other end is closed
        while True:
            said += os.read(ours, 4096).decode(errors="replace")  # half of a character may come
            if waiting and said.endswith(": "):
                os.write(ours, f"{waiting.pop(0)}\n".encode())
    assert started.wait() == 0, said
    assert "there is no column 'questions'; the data has question, solution" in said
    assert "reward 'exakt': did you mean 'exact'?" in said
    assert "train: 20 rows" in said and "Train with `strop train run.yaml`." in said
    run = load_run(tmp_path / "run.yaml").run
    assert (run.data.train.prompt, run.data.train.answer) == ("question", "solution")


def test_a_wheel_has_all_that_the_commands_need(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dependencies are those of this environment; Strop itself comes from the wheel, outside of the repository."""
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("strop-*.whl")
    venv.create(tmp_path / "venv")
    binaries = tmp_path / "venv" / "bin"
    run(*pip, "--python", binaries / "python", "install", "--no-deps", wheel)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    assert run(binaries / "python", "-c", "import strop; print(strop.__file__)").startswith(str(packages))

    (tmp_path / "warm-start").symlink_to(tiny_model)
    row = json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n"
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(row * 64, encoding="utf-8")
    example = (ROOT / "examples" / "algorithms" / "grpo.yaml").read_text(encoding="utf-8")
    (tmp_path / "run.yaml").write_text(example, encoding="utf-8")
    monkeypatch.setenv("QUICKSTART", str(tmp_path))
    assert "64 rows" in run(binaries / "strop", "check", "run.yaml")
    assert run(binaries / "strop", "help", "troubleshooting#out-of-memory").startswith("## Out of memory")
    run(binaries / "strop", "quickstart", "--notebook")
    assert (tmp_path / "first_run.ipynb").is_file()


def test_the_collections_at_the_end_of_the_process_search_nothing() -> None:
    """Functions that are registered first are called last."""
    program = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 0, len(gc.get_objects())))\n"
        "from strop.cli.start import main; sys.argv = ['strop', '--version']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    is_frozen, objects = done.stdout.splitlines()[-1].split()
    assert (is_frozen, done.returncode) == ("True", 0)
    assert int(objects) < 100
