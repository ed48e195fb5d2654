"""Every layout of ranks learns what one process learns, and divides the model.

`STROP_LAYOUTS=all` runs each case on each layout; without it each layout runs one case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from strop.models.tiny import make_model
from strop.training.backends.fsdp2 import Fsdp2Engine
from strop.training.backends.local import LocalEngine
from strop.training.ranks.group import RankGroup
from tests.training.test_ranks import FULL_KL, KL, LORA, CountParameters, close, learn, the_run, weights

OFFLOAD = {"cpu_offload": True, "reference_cpu_offload": True}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "2 replicas": {"ranks": 2, "replicate": 2},
    "2 shards kept": {"ranks": 2, "reshard_after_forward": False, "gradient_sync": "last_microbatch"},
    "2 shards offloaded": {"ranks": 2, "forward_prefetch": 1, **OFFLOAD},
    "2 x 2": {"ranks": 4, "replicate": 2, "wrap": {"layers": ["Qwen2DecoderLayer"]}},
    "2 x 2 offloaded": {"ranks": 4, "replicate": 2, "gradient_sync": "last_microbatch", **OFFLOAD},
}
RECOMPUTED = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_interval": 2,
    "activation_offload": True,
}
CASES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "kl": ({}, KL),
    "full kl": ({}, FULL_KL),
    "recomputed": (RECOMPUTED, "grpo"),
    "lora": (LORA, KL),
}
"""Model and algorithm of each case."""
ALL = os.environ.get("STROP_LAYOUTS") == "all"
PAIRS = (
    [(layout, case) for layout in LAYOUTS for case in CASES]
    if ALL
    else [
        ("2 replicas", "recomputed"),
        ("2 shards kept", "kl"),
        ("2 shards offloaded", "lora"),
        ("2 x 2", "full kl"),
        ("2 x 2 offloaded", "kl"),
    ]
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[int], RankGroup]]:
    """Starts a number of ranks, or returns those that run if they are as many."""
    running: list[RankGroup] = []

    def started(ranks: int) -> RankGroup:
        if running and running[0].ranks != ranks:
            running.pop().close()
        if not running:
            running.append(RankGroup(ranks, "cpu"))
        return running[0]

    yield started
    for group in running:
        group.close()


def on_layouts(pairs: Any) -> Any:
    """Parameters `layout` and `case`; four ranks are slow on two cores."""
    return pytest.mark.parametrize(
        ("layout", "case"),
        [
            pytest.param(
                LAYOUTS[layout],
                CASES[case],
                marks=[pytest.mark.slow] if LAYOUTS[layout]["ranks"] > 2 else [],
                id=f"{layout}, {case}",
            )
            for layout, case in pairs
        ],
    )


@on_layouts(PAIRS)
def test_a_layout_learns_what_one_process_learns(start, model_folder, tmp_path, layout, case):
    run, group = the_run(model_folder, *case, **layout), start(layout["ranks"])
    alone, ranked = LocalEngine(run), Fsdp2Engine(group, run)
    assert_divided(group, ranked, run)
    close(learn(ranked, run, range(2)), learn(alone, run, range(2)))
    close(weights(ranked), weights(alone))
    ranked.snapshot().begin_write(tmp_path)()
    expected = learn(ranked, run, range(2, 3))
    again = LocalEngine(run)
    again.load(tmp_path)
    close(learn(again, run, range(2, 3)), expected)


def assert_divided(group: RankGroup, engine: Fsdp2Engine, run: Any) -> None:
    """Each replica's ranks hold about equal parts of its trained parameters."""
    section = run.trainer.engine
    held = group.run(CountParameters())
    whole = sum(p.numel() for p in engine.policy.master.parameters() if p.requires_grad)
    parts = section.ranks // section.replicate
    for replica in range(section.replicate):
        own = held[replica * parts : (replica + 1) * parts]
        assert sum(own) == whole
        assert max(own) < 1.3 * whole / parts


@pytest.mark.parametrize(
    ("engine", "message"),
    [({"ranks": 4, "replicate": 3}, r"ranks \(4\) is not a multiple of replicate \(3\)")],
)
def test_sizes_that_do_not_fit_are_refused(engine, message):
    with pytest.raises(ValidationError, match=message):
        the_run(Path("model"), **engine)
