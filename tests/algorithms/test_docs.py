"""Every algorithm has a run file that runs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import get_args

import pytest

import strop
from strop.config.schema.algorithm import CriticFreeConfig, MixConfig, PpoConfig
from strop.config.schema.policy_gradient import PolicyGradientConfig
from strop.models.tiny import make_model

ROOT = Path(__file__).parents[2]
WITH_GIVEN_ANSWERS = {"bco", "dpo", "kto", "mix", "orpo", "reward_model", "sft", "simpo", "tr_dpo"}
"""Run by tests/run/test_offline_examples.py, which makes the answers."""
RUN_FILES = sorted(
    path for path in (ROOT / "examples" / "algorithms").glob("*.yaml") if path.stem not in WITH_GIVEN_ANSWERS
)
ALGORITHMS: tuple[type[PolicyGradientConfig], ...] = (
    *(a for a in get_args(CriticFreeConfig) if a is not MixConfig),
    PpoConfig,
)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's files: tasks and a model, here an untrained one."""
    folder = tmp_path_factory.mktemp("quickstart")
    sums = [(a, b) for a in range(10, 15) for b in range(10, 15)]
    random.Random(0).shuffle(sums)
    rows = [json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) for a, b in sums]
    for name, chosen in (("train", rows), ("test", rows[:4])):
        (folder / f"{name}.jsonl").write_text("\n".join(chosen) + "\n")
    make_model(
        folder / "warm-start", ["12+34=46"], vocab_size=300, hidden_size=16, layers=1, heads=2, kv_heads=2
    )
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("run_file", RUN_FILES, ids=lambda path: path.stem)
def test_every_run_file_runs(run_file: Path, quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART", str(quickstart))
    monkeypatch.setenv("TEACHER", str(quickstart / "warm-start"))
    updates = "null" if run_file.stem == "online_dpo" else 2
    small = ["duration=2 steps", "tasks_per_step=4", f"tasks_per_update={updates}"]
    quiet = [
        f"output={quickstart / 'runs'}",
        "record={monitors: [], report: false}",
        "evaluate.at_start=false",
    ]
    run = strop.load(run_file, [*quiet, *(f"trainer.{one}" for one in small)])
    result = strop.train(run)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 2
    assert result.model.is_dir()


def test_every_algorithm_has_a_run_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUICKSTART", "nowhere")
    shown = {strop.load(path).run.algorithm.type for path in RUN_FILES}
    assert {kind.model_fields["type"].default for kind in ALGORITHMS} <= shown
