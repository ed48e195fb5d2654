"""Datasets on the hub, with a local hub; in child processes, because the hub's address is read once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.loopback_hub import loopback_hub

REPO = Path(__file__).parents[2]
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: single
  data_files:
  - {split: test, path: main/test-*}
---
"""
READ = """
import json, sys
from strop.config.schema.data import TasksetConfig
from strop.data.sources.reader import read_rows
from strop.errors import DataError
for section in json.loads(sys.argv[1]):
    try:
        rows = read_rows(TasksetConfig(**section))
        print(json.dumps([rows[0], len(rows), rows.where(0)]))
    except DataError as error:
        print(json.dumps(str(error)))
"""


def parquet(rows: list[dict[str, str]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def row(number: int) -> dict[str, str]:
    return {"question": f"What is {number}?", "answer": f"It is {number}.\n#### {number}"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    files = {
        "README.md": CARD.encode(),
        "main/train-00000-of-00001.parquet": parquet([row(i) for i in range(5)]),
        "main/test-00000-of-00001.parquet": parquet([row(i) for i in (7, 8)]),
    }
    with loopback_hub("openai/gsm8k", files) as address:
        home = tmp_path_factory.mktemp("hub")
        own = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        yield os.environ | own


def run(environment, folder, *arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_subsets_and_splits(environment, tmp_path):
    path = {"path": "openai/gsm8k"}
    sections = [
        path | {"subset": "main", "split": "train"},
        path | {"subset": "single"},
        path | {"subset": "main", "split": "train[3:]"},
        path | {"subset": "main"},
        path | {"subset": "main", "split": "dev"},
        path | {"subset": "socratic"},
        path,
        {"path": "openai/gsm9k"},
    ]
    done = run(environment, tmp_path, "-c", READ, json.dumps(sections))
    assert done.returncode == 0, done.stderr
    assert "examples/s" not in done.stderr, "no progress bars in a log"
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[:3] == [
        [row(0), 5, "openai/gsm8k (train) row 0 (counting from 0)"],
        [row(7), 2, "openai/gsm8k (test) row 0 (counting from 0)"],
        [row(3), 2, "openai/gsm8k (train[3:]) row 0 (counting from 0)"],
    ]
    parts = [
        "has the splits test, train. Select one: write `split: train`",
        'Unknown split "dev". Should be one of',
        "'socratic' not found. Available: ['main', 'single']",
        "Config name is missing",
        "no file or directory openai/gsm9k, and it cannot be loaded as a dataset from the Hugging Face hub",
    ]
    for error, part in zip(answers[3:], parts, strict=True):
        assert part in error and "\n" not in error


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "told"), [("/", "cannot be reached ("), ("/tree/", "")])
def test_a_hub_that_is_silent_is_one_line(tmp_path, silent, told):
    """From the start, or when the files are listed, for which the libraries have no limit of time."""
    with loopback_hub("openai/gsm8k", {"train.parquet": parquet([row(0)])}, silent=silent) as address:
        own = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        limits = "import time; from huggingface_hub import constants; constants.HF_HUB_DOWNLOAD_TIMEOUT = 0.2"
        limits += (
            f"; from strop.workers import hub_requests; hub_requests.ANSWER_SECONDS = {0.2 if told else 60}"
        )
        code = f"{limits}; time.sleep = lambda seconds: None\n{READ}"
        done = run(os.environ | own, tmp_path, "-c", code, json.dumps([{"path": "openai/gsm8k"}]))
    assert done.returncode == 0, done.stderr
    error = json.loads(done.stdout)
    assert "cannot be loaded as a dataset from the Hugging Face hub" in error and told in error


@pytest.mark.slow
def test_the_gsm8k_preparer_reads_it(environment, tmp_path):
    prepare = str(REPO / "examples/gsm8k/prepare.py")
    done = run(environment, tmp_path, prepare, "--hub", "--out", "out")
    written = "wrote 5 tasks to out/train.parquet\nwrote 2 tasks to out/test.parquet\n"
    assert done.stdout == written, done.stderr
    rows = pq.read_table(tmp_path / "out" / "test.parquet").to_pylist()
    assert [r["reward_model"]["ground_truth"] for r in rows] == ["7", "8"]
    assert rows[1]["extra_info"] == {"split": "test", "index": 1, **row(8)}
