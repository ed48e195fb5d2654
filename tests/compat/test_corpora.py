"""Real configurations of verl and Trinity, by version: at least as many are read as when the minimum was set, and each
other one is refused with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.round_trips import TRINITY_VARIABLES, losses, read
from strop.errors import StropError
from tests.cases import nightly

CORPORA = Path(__file__).parents[3] / "shared" / "configs"
MINIMUMS = {"verl-2025-06": 41, "verl-2026-08": 70, "trinity-2025-10": 19, "trinity-2026-04": 22}
"""Trinity's other files need Data-Juicer operators, images, a model behind an API, or a plug-in."""
NOT_WRITTEN = {
    "algorithm.overlong_penalty": "of Trinity 0.3, whose math_dapo_reward is that of math_boxed_reward later",
    "algorithm.rejection": "verl has a strict bound where Strop has an inclusive one",
    "data.eval.0.dataset.config": "verl's whole data section, as the file that is converted has it",
    "data.train.dataset.config": "verl's whole data section, as the file that is converted has it",
    "model.dtype": "of verl's other SFT engines",
    "reward.functions.0.args": "a scorer of verl 0.5, in a file with later keys",
    "trainer.router_loss": "of Megatron's transformer configuration",
    "trainer.schedule": "of verl's other SFT engines",
}
"""Fields that a configuration loses in the keys of its own tool, with the reason."""
REFUSED = ("no equivalent of the algorithm", "takes the address of a server from an environment variable")
"""Parts of the reasons why a run is not written in the keys of its own tool."""


@pytest.mark.slow
@pytest.mark.parametrize("corpus", MINIMUMS)
def test_real_configurations(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CORPORA / f"{corpus}.jsonl"
    if not file.exists():
        pytest.skip("the corpora are not in ../shared")
    for name in TRINITY_VARIABLES.split():
        monkeypatch.setenv(f"TRINITY_{name}", "x")
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.open(encoding="utf-8")]
    count = 0
    for row in rows:
        try:
            read(row)
        except StropError as error:
            assert str(error), row["id"]
        else:
            count += 1
    assert count >= MINIMUMS[corpus], f"{count} of {len(rows)} configurations are read"


@pytest.mark.slow
@pytest.mark.parametrize("every", [6, *nightly(1)])
@pytest.mark.parametrize("corpus", MINIMUMS)
def test_round_trips_of_real_configurations(corpus: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CORPORA / f"{corpus}.jsonl"
    if not file.exists():
        pytest.skip("the corpora are not in ../shared")
    for name in TRINITY_VARIABLES.split():
        monkeypatch.setenv(f"TRINITY_{name}", "x")
    lost = []
    for line in file.read_text(encoding="utf-8").splitlines()[::every]:
        row = json.loads(line)
        try:
            job = read(row)
        except StropError:
            continue
        for loss in [] if job is None else losses(job, "trinity" if "yaml" in row else "verl"):
            is_known = (
                loss.field.startswith(tuple(NOT_WRITTEN)) if loss.field else has_any(loss.reason, REFUSED)
            )
            lost += [] if is_known else [(row["id"], loss)]
    assert lost == []


def has_any(text: str, parts: tuple[str, ...]) -> bool:
    return any(part in text for part in parts)
