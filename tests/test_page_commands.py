"""The commands of the pages run as they stand, in a folder that has what they name; `NOT_RUN` lists the others."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model
from strop.workers.waiting import wait_until
from tests.models.gguf_files import write_gguf
from tests.test_docs import ROOT, TEXTS

LIMIT = 900.0
_FENCED = re.compile(r"^```(.*?)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(
    r"^ {4}(?:\$ )?(?=(?:[A-Z_]+=\S+ )*\S*"
    r"(?:strop|python[\d.]*|pip|make|export|git|cd|echo|bash|pytest|torchrun|trinity|lm_eval|inspect)\s)"
    r"((?:.*\\\n)*.*)$",
    re.MULTILINE,
)
RUN_BY = {
    **dict.fromkeys(
        (
            "docs/tutorials/own-data-and-reward.md",
            "docs/tutorials/preferences.md",
            "docs/coming-from/trl.md",
            "docs/coming-from/trinity.md## Bring",
            "docs/coming-from/verl.md## Bring",
            "docs/workflows.md## An agent with a tool",
        ),
        "tests/learning/test_tutorials.py",
    ),
    "docs/coming-from/azureml.md## A first run": "tests/compat/test_azureml.py",
}
"""Tests that run the commands of a page, or of a section of it."""
NOT_RUN = {
    "needs the network": [
        "git clone",
        "make quickstart",
        "make test",
        "make real",
        "make .venv/bench .venv/real",
        "python -m pip install",
        "pip install",
        "/tmp/parity/bin/pip install",
        "python3.11 -m venv /tmp/parity",
        "python examples/real/real.py",
        "python examples/gsm8k/prepare.py --hub",
    ],
    "needs Docker": ["docker "],
    "needs Azure": ["az ml"],
    "needs a GPU": ["python scripts/gpu_evidence.py"],
    "needs several machines": ["torchrun"],
    "is the other tool's own command": ["trinity run", "python -m verl.trainer.main_ppo", "trl vllm-serve"],
    "needs another tool's environment": [
        "TRL_WITH_BCO=",
        "python benchmarks/math_answers.py --verl verl",
        "python benchmarks/tinker_recipes.py",
        "OPENAI_API_KEY=... lm_eval",
        "STROP_API_KEY=",
        "strop evaluate RUN --with lm-eval",
        "STROP_DATA_JUICER_TOKEN=secret",
        "VLLM_SERVER_DEV_MODE=1 vllm serve",
        "STROP_KILLS=20",
        "OMP_NUM_THREADS=1 .venv-vllm/bin/python benchmarks/",
    ],
    "takes hours, or needs a model of the Hub": [
        "make evidence ARGS=fake-cuda",
        ".venv/bin/python benchmarks/results.py",
        "python examples/real/tasks.py --data FOLDER human_like",
        "for seed in 1 2 3",
        "OMP_NUM_THREADS=1 python benchmarks/tinker_cost.py",
    ],
    "is a measurement of the tests themselves": [
        "python tools/mutation.py",
        "cd /tmp/traced",
        "STROP_TRACE=/tmp/trace",
    ],
    "changes the shell in which it is typed": [". .venv/bin/activate"],
    "is a pattern of a command": [
        "strop convert FILE --to strop|verl",
        "strop import launch.sh [ARGUMENTS]",
        "python my_loop.py",
        "export TINKER_BASE_URL",
    ],
}
"""Beginnings of commands that are not run, by the reason."""
REASONS = {start: reason for reason, starts in NOT_RUN.items() for start in starts}
VERL = (
    "data.train_files=data/gsm8k/train.parquet data.val_files=data/gsm8k/test.parquet data.train_batch_size=4 "
    "data.max_response_length=8 actor_rollout_ref.model.path=model actor_rollout_ref.actor.ppo_mini_batch_size=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=2 algorithm.adv_estimator=grpo "
    "trainer.n_gpus_per_node=8 trainer.total_training_steps=1"
)
"""Keys of a command line of verl for eight GPUs."""
TRINITY = "model.max_response_tokens=8 buffer.batch_size=4 buffer.total_steps=1"
SQLITE3 = """
import sqlite3, sys
for row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]):
    print(*row, sep="|")
"""
"""Program in the place of SQLite's, which a machine need not have."""
SMALL = {
    "strop quickstart": "strop quickstart --steps 2",
    "strop init run.yaml": "strop init run.yaml --force --steps 2 --max-response-tokens 4",
    "strop serve ": "strop serve --host 127.0.0.1 ",
    "Qwen/Qwen2.5-0.5B-Instruct": "model",
    "Qwen2.5-0.5B-Instruct": "model",
    "Qwen3-0.6B --name": "model --name",
    "MODEL_PATH=...": "MODEL_PATH=model",
    "TRINITY_TASKSET_PATH=...": "TRINITY_TASKSET_PATH=raw",
    "TRINITY_TASKSET_PATH=data/gsm8k": "TRINITY_TASKSET_PATH=raw",
    "grpo_gsm8k.yaml --here": f"grpo_gsm8k.yaml --here {TRINITY}",
    "countdown.yaml --here": f"countdown.yaml --here {TRINITY}",
    "data.train_files=gsm8k/train.parquet ...": VERL,
    "colors/run.yaml": "colors/run.yaml 'trainer.duration=2 steps' 'trainer.batch_selection.steps=1 steps'",
    "sums.sh": "sums.sh trainer.total_training_steps=2",
    "--seeds 1,2,3": "--seeds 1",
    'buffer.db "SELECT id, uses': 'queue.db "SELECT id, uses',
}
"""Parts of commands that are replaced, so that they take seconds and find what `reader` has made."""
BEFORE = {
    "buffers.md": [
        "strop train run.yaml buffer=sql",
        "strop train run.yaml name=queue 'buffer={type: queue, backup: ../n/queue.db}'",
    ],
    "service.md": ["strop train run.yaml project=sums name=grpo"],
}
"""Commands that the text of a page presupposes."""
ANSWERS = {"strop init": "model\ngsm8k.jsonl\nexact\ntest.jsonl\n\n", "strop chat": "1+1=\n/quit\n"}
"""Lines that are typed, by the beginning of the command."""


def commands(page: Path) -> Iterator[str]:
    """The commands of a page that no other test runs, in the order of the page."""
    text, name = TEXTS[page], str(page.relative_to(ROOT))
    for place in RUN_BY:
        followed, _, heading = place.partition("#")
        if followed == name:
            text = (
                re.sub(rf"^#{heading}.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
                if heading
                else ""
            )
    shells = ("sh", "bash", "")
    fences = [(found.start(), found[2]) for found in _FENCED.finditer(text) if found[1] in shells]
    hidden = _FENCED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    indented = [(found.start(), found[1]) for found in _INDENTED.finditer(hidden)]
    for _, block in sorted(fences + indented):
        whole = ""
        for line in block.splitlines():
            whole += line.removesuffix("\\").rstrip() + (" " if line.endswith("\\") else "\n")
            if not line.endswith("\\") and _is_complete(whole):
                if command := whole.strip().partition(" # ")[0].strip():
                    yield command
                whole = ""
        assert not whole, f"{name} ends inside the command {whole!r}"


def _is_complete(text: str) -> bool:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # an open quotation mark
        return False
    return words.count("for") == words.count("done")


def reason(command: str) -> str | None:
    """Why a command is not run."""
    return next((reason for start, reason in REASONS.items() if command.startswith(start)), None)


COMMANDS = {page: list(commands(page)) for page in TEXTS}
PAGES = [page for page, found in COMMANDS.items() if any(reason(command) is None for command in found)]


def test_every_place_of_the_tables_is_in_a_page() -> None:
    found = [command for each in COMMANDS.values() for command in each]
    for start in REASONS:
        assert any(command.startswith(start) for command in found), f"no page has {start!r}"
    for place, test in RUN_BY.items():
        name, _, heading = place.partition("#")
        assert f"\n#{heading}" in "\n#" + TEXTS[ROOT / name]
        assert (ROOT / test).is_file()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples of a clone, a small model, data, and the files that pages name."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "benchmarks", "scripts"):
        Path(name).symlink_to(ROOT / name)
    text = ["What is 12 + 34? The sum of 12 and 34 is 46."]
    make_model(Path("model"), 4 * text, vocab_size=320, hidden_size=32)
    write_gguf(Path("model"), Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
    model = AutoModelForCausalLM.from_pretrained("model")
    for name in ("math", "code"):
        get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(f"adapters/{name}")
    rows = [{"prompt": f"{a}+1=", "question": f"{a}+1=", "answer": f"#### {a + 1}"} for a in range(16)]
    for name in ("train", "test", "gsm8k", "questions"):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {
        "prompt": [[{"role": "user", "content": row["prompt"]}] for row in rows],
        "question": [row["prompt"] for row in rows],
        "answer": [row["answer"] for row in rows],
        "data_source": ["openai/gsm8k"] * len(rows),
        "reward_model": [{"style": "rule", "ground_truth": str(a + 1)} for a in range(len(rows))],
    }
    for folder in ("data/gsm8k", "raw"):
        Path(folder).mkdir(parents=True)
    for name in ("train", "test"):
        pd.DataFrame(columns).to_parquet(f"data/gsm8k/{name}.parquet")
        Path(f"raw/{name}.jsonl").write_text(Path("train.jsonl").read_text())
    trainer = {"duration": "2 steps", "tasks_per_step": 2}
    data = {"train": {"path": "train.jsonl"}, "max_prompt_tokens": 16, "max_response_tokens": 4}
    run = {
        "project": "p",
        "name": "n",
        "model": {"path": "model"},
        "data": data,
        "reward": "exact",
        "trainer": trainer,
    }
    Path("run.yaml").write_text(yaml.safe_dump(run))
    Path("countdown.yaml").write_text((ROOT / "examples/trinity/grpo_gsm8k.yaml").read_text())
    keys = {key.partition("=")[0]: key.partition("=")[2] for key in VERL.split()}
    OmegaConf.save(OmegaConf.from_dotlist([f"{key}={value}" for key, value in keys.items()]), "ppo.yaml")
    Path("launch.yaml").write_text(Path("ppo.yaml").read_text())
    Path("run_qwen3_8b.sh").write_text(f"set -x\npython3 -m verl.trainer.main_ppo {VERL} $@\n")
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page: Path, reader: Path) -> None:
    if page.name == "README.md" and page.parent == ROOT:
        write_shown_run(page)
    programs = reader / "bin"
    programs.mkdir()
    (programs / "sqlite3").write_text(f"#!{sys.executable}\n{SQLITE3}")
    (programs / "sqlite3").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    named = {"MODEL_PATH": "model", "TRINITY_TASKSET_PATH": "raw"}
    environment = os.environ | named | {"PATH": path, "PYTHONPATH": str(ROOT)}
    for command in [*BEFORE.get(page.name, []), *COMMANDS[page]]:
        if reason(command) is not None:
            continue
        for shown, small in SMALL.items():
            command = command.replace(shown, small)
        if command.startswith("export "):
            environment |= dict(word.split("=", 1) for word in shlex.split(command)[1:])
        elif command.startswith(("strop serve", "strop studio")):
            serve(f"{command} --port 0", page, environment)
        else:
            run(command, environment)


def write_shown_run(page: Path) -> None:
    """Write the run file that a page shows, shorter."""
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", TEXTS[page], re.DOTALL | re.MULTILINE)
    for old, new in {
        "Qwen/Qwen2.5-0.5B-Instruct": "model",
        "max_response_tokens: 512": "max_response_tokens: 4",
        "100 steps, tasks_per_step: 64, tasks_per_update: 16": "2 steps, tasks_per_step: 4, tasks_per_update: 2",
    }.items():
        assert old in shown
        shown = shown.replace(old, new)
    Path("run.yaml").write_text(shown)


def run(command: str, environment: Mapping[str, str]) -> None:
    """Run a command, which must succeed, with a terminal whose lines `ANSWERS` has."""
    typed = next((text for start, text in ANSWERS.items() if command.startswith(start)), "")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode() + b"\x04")  # and the end of the input
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            env=environment,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode(errors='replace')}"


def serve(command: str, page: Path, environment: Mapping[str, str]) -> None:
    """Start a service, use it as the page shows if it is the one of the page's code, and end it by Ctrl-C."""
    file = Path("service.log")
    with file.open("w") as log:
        process = subprocess.Popen(
            shlex.split(command), env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until(
            lambda: "Ctrl-C" in file.read_text() or process.poll() is not None,
            "the service",
            timeout_seconds=LIMIT,
        )
        assert process.poll() is None, f"{command}\n{file.read_text()}"
        if "--name smol" in command:
            (code,) = re.findall(r"^```python\n(.*?)^```", TEXTS[page], re.DOTALL | re.MULTILINE)
            (url,) = re.findall(r"http://\S+/v1", file.read_text())
            (key,) = re.findall(r"API key: (\S+?)\.?$", file.read_text(), re.MULTILINE)
            code = code.replace("http://127.0.0.1:8000/v1", url).replace('"..."', repr(key))
            exec(compile(code, str(page), "exec"), {})
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) in (0, 130), f"{command}\n{file.read_text()}"
    finally:
        process.kill()
