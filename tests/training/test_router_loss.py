"""`trainer.router_loss` in the engines: any micro-batches, shared prompts and ranks give one gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.errors import ModelError
from strop.training.backend import TrainingBackend
from strop.training.engine import local_policy
from strop.training.ranks.group import RankGroup
from strop.types import TrainingBatch
from tests.models.families import family_folder
from tests.training.test_local_engine import batch_of, gradient, make_run

BOTH = {"balance_coef": 0.5, "balance_over": "model", "z_coef": 0.01}


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts."""
    return family_folder(tmp_path_factory.mktemp("models"), "qwen3_moe")


def the_run(folder: Path, router_loss: Any = BOTH, microbatch: str = "60 tokens", **engine: Any) -> Run:
    trainer = {
        "engine": {"device": "cpu", **engine},
        "microbatch": microbatch,
        "router_loss": router_loss,
        "optimizer": {"lr": 0.01},
    }
    return make_run(folder, trainer=trainer, algorithm="reinforce")


def silent(batch: TrainingBatch) -> TrainingBatch:
    """The batch without advantages, so that only the routers have a loss."""
    return TrainingBatch(batch.experiences, advantages=[0.0] * len(batch.experiences))


def learn(engine: Any, run: Run) -> dict[str, float]:
    return dict(engine.forward_backward(silent(batch_of()), LossSpec(run.algorithm, 64)))


def test_the_loss_is_that_of_transformers_on_the_whole_update(experts: Path) -> None:
    """The sequences are computed one by one there, and in micro-batches with shared prompts here."""
    run = the_run(experts, {"balance_coef": 1.0, "balance_over": "model"})
    engine = local_policy(run)
    assert engine.supports_shared_prompts
    metrics = learn(engine, run)
    model = AutoModelForCausalLM.from_pretrained(experts, output_router_logits=True)
    experiences = batch_of().experiences
    longest = max(len(e.token_ids) for e in experiences)
    tokens = torch.zeros(len(experiences), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, e in enumerate(experiences):
        tokens[row, : len(e.token_ids)] = torch.from_numpy(e.token_ids)
        mask[row, : len(e.token_ids)] = 1
    expected = model(input_ids=tokens, attention_mask=mask).aux_loss
    assert metrics["router/balance_loss"] == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    ours = gradient(engine.policy)
    assert theirs.norm() > 1e-4
    torch.testing.assert_close(ours[ours != 0], theirs[theirs != 0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("over", ["layer", "model"])
def test_micro_batches_change_nothing(experts: Path, over: str) -> None:
    found = []
    for size in ("60 tokens", "1 sequences", "10000 tokens"):
        run = the_run(experts, BOTH | {"balance_over": over}, size)
        engine = local_policy(run)
        found.append((learn(engine, run), gradient(engine.policy)))
    for metrics, gradients in found[1:]:
        assert metrics == pytest.approx(found[0][0], rel=1e-4, abs=1e-7)
        torch.testing.assert_close(gradients, found[0][1], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.xdist_group("2 ranks")
@pytest.mark.parametrize("router_loss", [BOTH, {"z_coef": 0.1}])
def test_two_ranks_learn_what_one_process_learns(pair: RankGroup, experts: Path, router_loss: Any) -> None:
    one = the_run(experts, router_loss)
    two = the_run(experts, router_loss, type="fsdp2")
    alone, ranked = local_policy(one), TrainingBackend(two, pair, "").policy()
    for _ in range(2):
        first, second = ({**learn(engine, one), "norm": engine.step()} for engine in (alone, ranked))
        assert second == pytest.approx(first, rel=1e-4, abs=1e-7)
        assert first["norm"] > 0


def test_a_model_without_experts_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"Qwen2ForCausalLM is none of them"):
        local_policy(the_run(folder))
