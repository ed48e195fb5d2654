"""Training with DeepSpeed's ZeRO gives the results of one process, and each rank holds only its part.

`STROP_LAYOUTS=all` runs every case; without it one case runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoTokenizer

from strop.algorithms.loss_spec import LossSpec
from strop.algorithms.losses.value_losses import ValueLoss
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.models.tiny import make_model
from strop.training.backends.deepspeed import describe_division
from strop.training.backends.fsdp2 import Fsdp2CriticEngine, Fsdp2Engine
from strop.training.backends.local import LocalCriticEngine, LocalEngine
from strop.training.ranks.group import RankGroup
from strop.training.ranks.messages import POLICY, Rank
from strop.types import TrainingBatch
from strop.workers.cleanup import closing
from tests.training.test_layouts import ALL
from tests.training.test_local_engine import batch_of, make_run
from tests.training.test_ranks import FULL_KL, KL, LORA, close, learn, weights

pytest.importorskip("deepspeed")
TORCH_LINEAR = functional.linear
"""The function that ZeRO-3 replaces; a rank that kept the replacement would learn something else in the next group."""
DIVIDED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""Small parameters are divided, too; by default ZeRO-3 leaves them whole."""


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration of the engine, and of the model and the algorithm that it trains."""

    stage: int
    engine: dict[str, Any]
    model: dict[str, Any]
    algorithm: dict[str, Any]
    optimizer: str = "adamw"
    lr: float = 0.01


OFFLOAD = {"offload_optimizer": True, "offload_parameters": True}
GRPO = {"type": "grpo"}
SMALL = {"3, offload, lora, full kl": Case(3, OFFLOAD, LORA, FULL_KL)}
GRID = {
    "1": Case(1, {}, {}, GRPO),
    "2": Case(2, {}, {}, KL),
    "3": Case(3, {}, {}, FULL_KL),
    "2, offload": Case(2, {"offload_optimizer": True}, LORA, KL),
    "3, offload": Case(3, OFFLOAD, {}, GRPO),
    "3, bfloat16": Case(3, {}, {"compute_dtype": "bfloat16"}, GRPO),
    "1, bfloat16, lora": Case(1, {}, {"compute_dtype": "bfloat16"} | LORA, GRPO),
    "1, sgd": Case(1, {}, {}, GRPO, "sgd"),
    # RMSprop's first update is 10 times its learning rate, and rounding of gradients near 0 is multiplied by it.
    "2, rmsprop": Case(2, {}, {}, GRPO, "rmsprop", lr=0.001),
    "3, adagrad": Case(3, {}, {}, GRPO, "adagrad"),
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


def runs(folder: Path, case: Case) -> tuple[Run, Run]:
    """The run on two ranks of DeepSpeed, and the same run in one process."""
    engine = {"type": "deepspeed", "device": "cpu", "zero_stage": case.stage, "config": DIVIDED}
    trainer = {"optimizer": {"type": case.optimizer, "lr": case.lr}, "microbatch": "60 tokens"}
    return (
        make_run(
            folder, case.model, trainer=trainer | {"engine": engine | case.engine}, algorithm=case.algorithm
        ),
        make_run(
            folder, case.model, trainer=trainer | {"engine": {"device": "cpu"}}, algorithm=case.algorithm
        ),
    )


def group_of(run: Run) -> RankGroup:
    return RankGroup(run.trainer.engine.ranks, "cpu")


@dataclass(frozen=True, slots=True)
class CountHeld:
    """Count the numbers that a rank holds: of parameters between two passes, and of the optimizer's masters."""

    def run(self, worker: Rank) -> tuple[int, int]:
        model = worker.model(POLICY)
        parameters = sum(getattr(p, "ds_tensor", p).numel() for p in model.master.parameters())
        masters = sum(part.numel() for part in model._state.master_parts)
        return parameters, masters


def require_divided(group: RankGroup, case: Case, engine: Fsdp2Engine) -> None:
    """Each rank holds half of the masters, and in ZeRO-3 half of the parameters."""
    sizes = [getattr(p, "ds_numel", p.numel()) for p in engine.policy.master.parameters()]
    trained = sum(
        getattr(p, "ds_numel", p.numel()) for p in engine.policy.master.parameters() if p.requires_grad
    )
    held = group.run(CountHeld())
    assert len(held) == 2
    for parameters, masters in held:
        assert masters == pytest.approx(trained / 2, rel=0.02)
        assert parameters == pytest.approx(sum(sizes) / (2 if case.stage == 3 else 1), rel=0.02)


def check(folder: Path, tmp_path: Path, case: Case) -> None:
    """Gradients, updates, a checkpoint that one process and other ranks resume, and an export."""
    run, single = runs(folder, case)
    tolerance = 0.05 if "compute_dtype" in case.model else 1e-4
    alone = LocalEngine(single)
    with closing(group_of(run)) as group:
        ranked = Fsdp2Engine(group, run, describe_division(run.trainer.engine, "cpu"))
        assert f"DeepSpeed ZeRO-{case.stage}" in ranked.description
        close(learn(ranked, run, range(2)), learn(alone, single, range(2)), tolerance)
        close(weights(ranked), {n: w.to(ranked._dtype) for n, w in weights(alone).items()}, tolerance)
        require_divided(group, case, ranked)
        batch, sft = batch_of(), LossSpec(SftConfig(), 64)
        close(ranked.logprobs(batch.experiences), alone.logprobs(batch.experiences), tolerance)
        close(ranked.evaluate_loss(batch, sft), alone.evaluate_loss(batch, sft), tolerance)
        ranked.snapshot().begin_write(tmp_path)()
        assert not any(path.suffix in (".pt", ".bin", ".pkl") for path in tmp_path.rglob("*"))
        expected = learn(ranked, run, range(2, 4))
        ranked.load(tmp_path)
        assert learn(ranked, run, range(2, 4)) == expected
        again = LocalEngine(single)
        again.load(tmp_path)
        close(learn(again, single, range(2, 4)), expected, tolerance)
        (tmp_path / "alone").mkdir()
        alone.snapshot().begin_write(tmp_path / "alone")()
        ranked.load(tmp_path / "alone")
        close(ranked.logprobs(batch.experiences), alone.logprobs(batch.experiences), tolerance)
        close(learn(ranked, run, range(4, 5)), learn(alone, single, range(4, 5)), tolerance)
    assert functional.linear is TORCH_LINEAR


CASES = SMALL | GRID if ALL else SMALL


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_ranks_learn_what_one_process_learns(case: Case, model_folder: Path, tmp_path: Path) -> None:
    check(model_folder, tmp_path, case)


@pytest.mark.slow
def test_a_critic_on_two_ranks_learns_what_it_learns_on_one(model_folder: Path, tmp_path: Path) -> None:
    """And an export holds the trained weights."""
    run, single = runs(model_folder, Case(3, OFFLOAD, LORA, {"type": "ppo"}))
    batch = batch_of()
    shapes = [len(e.token_ids) for e in batch.experiences]
    batch = TrainingBatch(
        batch.experiences,
        values=[np.zeros(n, np.float32) for n in shapes],
        returns=[np.ones(n, np.float32) for n in shapes],
    )

    def train(engine: Any) -> list[dict[str, float]]:
        engine.set_lr(0.01)
        rows = []
        for _ in range(2):
            row = dict(engine.forward_backward(batch, ValueLoss(None)))
            rows.append(row | {"grad_norm": engine.step()})
        return rows

    local = LocalCriticEngine(single, single.algorithm.critic)
    with closing(group_of(run)) as group:
        policy = Fsdp2Engine(group, run)
        ranked = Fsdp2CriticEngine(group, run, run.algorithm.critic)
        close(train(ranked), train(local))
        close(ranked.values(batch.experiences), local.values(batch.experiences))
        ranked.snapshot().begin_write(tmp_path)()
        local.load(tmp_path)
        close(ranked.values(batch.experiences), local.values(batch.experiences), 1e-6)
        policy.export(tmp_path / "out", AutoTokenizer.from_pretrained(model_folder).save_pretrained)
        held = load_file(tmp_path / "out" / "model.safetensors")
        close(held, {name: w for name, w in weights(policy).items() if name in held})
        assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
