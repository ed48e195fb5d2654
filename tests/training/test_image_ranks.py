"""Two ranks train a model with images as one process does, also where a rank has no image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.algorithms.loss_spec import LossSpec
from strop.config.units import Amount
from strop.data.packing import plan_micro_batches
from strop.protocols import TrainingEngine
from strop.training.backends.fsdp2 import Fsdp2Engine
from strop.training.backends.local import LocalEngine
from strop.training.ranks.group import RankGroup
from strop.training.ranks.share import plan_rank_shares
from strop.types import TrainingBatch
from tests.models.vision.images import vision_model
from tests.models.vision.test_packed_images import experiences_with_images
from tests.training.test_local_engine import make_run
from tests.training.test_ranks import close, weights

LIMIT = Amount(80, "tokens")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "grid": ("qwen3_vl", {}),
    "frozen tower": ("qwen2_5_vl", {"freeze_vision": True}),
    "adapter in the tower": ("qwen2_vl", {"lora": {"rank": 4, "alpha": 8, "exclude": []}}),
    "tiles": ("smolvlm", {}),
    "images that see all of themselves": ("gemma3", {}),
    "tiles of a grid": ("internvl", {}),
}


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    with closing(RankGroup(2, "cpu")) as group:
        yield group


def batch_of(family: str, folder: Path, seed: int) -> TrainingBatch:
    found = experiences_with_images(family, folder)
    return TrainingBatch(found, advantages=np.random.default_rng(seed).normal(size=len(found)).tolist())


def learn(engine: TrainingEngine, loss: LossSpec, batches: list[TrainingBatch]) -> list[dict[str, float]]:
    return [{**engine.forward_backward(batch, loss), "grad_norm": engine.step()} for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("sequence_parallel", [1, 2])
@pytest.mark.parametrize(("family", "model"), CASES.values(), ids=CASES)
def test_two_ranks_learn_what_one_process_learns(
    pair: RankGroup, family: str, model: dict[str, Any], sequence_parallel: int, tmp_path: Path
) -> None:
    trainer = {
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "engine": {
            "type": "fsdp2",
            "device": "cpu",
            "ranks": 2,
            "sequence_parallel": sequence_parallel,
        },
        "microbatch": "80 tokens",
    }
    run = make_run(vision_model(family), model, trainer=trainer)
    batches = [batch_of(family, tmp_path, seed) for seed in range(3)]
    text_only = batches[0].select([i for i, e in enumerate(batches[0].experiences) if not e.media])
    batches.append(replace(text_only, advantages=[0.5] * len(text_only.experiences)))
    loss = LossSpec(run.algorithm, 64)
    alone, ranked = LocalEngine(run), Fsdp2Engine(pair, run)
    assert ranked.supports_shared_prompts
    close(learn(ranked, loss, batches), learn(alone, loss, batches), 2e-4)
    close(weights(ranked), weights(alone), 2e-4)
    experiences = batches[0].experiences
    close(ranked.logprobs(experiences), alone.logprobs(experiences), 2e-4)


def test_a_rank_without_images_gets_a_placeholder(tmp_path: Path) -> None:
    batch = batch_of("qwen2_5_vl", tmp_path, 0)
    plans = plan_micro_batches(batch.experiences, LIMIT, share_prompts=True)
    shares = plan_rank_shares(batch, plans, len(plans) + 1)
    assert all(share.has_images for share in shares)
    assert shares[-1].plans == (None,)
    text_only = batch.select([i for i, e in enumerate(batch.experiences) if not e.media])
    plans = plan_micro_batches(text_only.experiences, LIMIT, share_prompts=True)
    assert not any(share.has_images for share in plan_rank_shares(text_only, plans, 2))
