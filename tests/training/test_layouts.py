"""Every layout of ranks learns what one process learns, and divides the model.

`STROP_LAYOUTS=all` runs each case on each layout; without it each layout runs one case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from torch import distributed

from strop.algorithms.loss_spec import LossSpec
from strop.algorithms.losses.value_losses import ValueLoss
from strop.config.schema.algorithm import SftConfig
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_model
from strop.models.packed_attention.forward import split_sequences
from strop.models.packed_attention.sequence_parallel import SequenceGroup
from strop.models.tiny import make_model
from strop.training.backends.fsdp2 import Fsdp2CriticEngine, Fsdp2Engine
from strop.training.backends.local import LocalCriticEngine, LocalEngine
from strop.training.ranks.group import RankGroup
from tests.models.families import family_folder
from tests.training.test_local_engine import batch_of
from tests.training.test_ranks import FULL_KL, KL, LORA, CountParameters, close, learn, the_run, weights

OFFLOAD = {"cpu_offload": True, "reference_cpu_offload": True}
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "2 replicas": {"ranks": 2, "replicate": 2},
    "2 shards kept": {"ranks": 2, "reshard_after_forward": False, "gradient_sync": "last_microbatch"},
    "2 shards offloaded": {"ranks": 2, "forward_prefetch": 1, **OFFLOAD},
    "sp 2": {"ranks": 2, "sequence_parallel": 2},
    "sp 2 x 2": {"ranks": 4, "sequence_parallel": 2},
    "sp 4": {"ranks": 4, "sequence_parallel": 4, "gradient_sync": "last_microbatch"},
    "replicas of sp 2": {"ranks": 4, "replicate": 2, "sequence_parallel": 2},
    "tp 2": {"ranks": 2, "tensor_parallel": 2},
    "tp 2 x 2": {"ranks": 4, "tensor_parallel": 2},
    "tp 2, sp 2": {"ranks": 4, "tensor_parallel": 2, "sequence_parallel": 2},
    "replicas of tp 2": {"ranks": 4, "tensor_parallel": 2, "replicate": 2, **OFFLOAD},
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
    "gspo": ({}, {"type": "grpo", "policy_loss": "gspo"}),
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
        ("sp 2", "full kl"),
        ("sp 2", "gspo"),
        ("sp 2", "lora"),
        ("tp 2", "lora"),
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
    """Parameters `layout` and `case`; four ranks are slow on two cores, and so is tensor parallelism."""
    return pytest.mark.parametrize(
        ("layout", "case"),
        [
            pytest.param(
                LAYOUTS[layout],
                CASES[case],
                marks=[pytest.mark.slow] if LAYOUTS[layout]["ranks"] > 2 or layout == "tp 2" else [],
                id=f"{layout}, {case}",
            )
            for layout, case in pairs
        ],
    )


@pytest.mark.slow
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


@pytest.mark.slow
@on_layouts([(name, "kl") for name in ("sp 2", "tp 2", *(["sp 2 x 2", "sp 4", "tp 2, sp 2"] if ALL else []))])
def test_a_critic_and_demonstrations_on_a_layout(start, model_folder, tmp_path, layout, case):
    run, group = the_run(model_folder, algorithm="ppo", **layout), start(layout["ranks"])
    batch = batch_of()
    ones = [np.ones(len(e.token_ids), np.float32) for e in batch.experiences]
    batch = replace(batch, values=[0 * each for each in ones], returns=ones)
    critics = (
        LocalCriticEngine(run, run.algorithm.critic),
        Fsdp2CriticEngine(group, run, run.algorithm.critic),
    )
    rows = [
        dict(critic.forward_backward(batch, ValueLoss(None))) | {"grad_norm": critic.step()}
        for critic in critics
    ]
    close(rows[1], rows[0])
    close(critics[1].values(batch.experiences), critics[0].values(batch.experiences))
    sft = LossSpec(SftConfig(), 64)
    alone, ranked = LocalEngine(run), Fsdp2Engine(group, run)
    close(ranked.evaluate_loss(batch, sft), alone.evaluate_loss(batch, sft))
    close(ranked.entropies(batch.experiences), alone.entropies(batch.experiences))


@pytest.mark.slow
@on_layouts([("sp 2", "kl")])
def test_a_teacher_on_a_layout(start, model_folder, tmp_path, layout, case):
    folder = make_model(
        tmp_path / "teacher", ["one and one"], vocab_size=280, hidden_size=64, layers=3, seed=1
    )
    teachers = [{"path": str(folder), "dtype": "float32"}]
    section = {"teachers": teachers, "loss": {"divergence": "reverse_kl"}}
    run = the_run(model_folder, algorithm={"type": "distillation", "distillation": section}, **layout)
    alone, ranked = LocalEngine(run), Fsdp2Engine(start(layout["ranks"]), run)
    close(learn(ranked, run, range(2)), learn(alone, run, range(2)))
    experiences = batch_of().experiences
    close(ranked.teacher_logprobs(experiences), alone.teacher_logprobs(experiences))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (3, "which does not divide the 3 attention heads"),
        (None, "cannot be divided over ranks: it has layers"),
    ],
)
def test_models_whose_tokens_cannot_be_divided_are_refused(tmp_path, heads, message):
    folder = tmp_path / "model"
    if heads is None:
        folder = family_folder(tmp_path, "lfm2")
    else:
        make_model(folder, ["one"], vocab_size=280, hidden_size=36, heads=heads, kv_heads=1)
    model = load_model(ModelConfig(path=str(folder)), device="cpu")
    with pytest.raises(ModelError, match=message):
        split_sequences(model, SequenceGroup(distributed.GroupMember.NON_GROUP_MEMBER, rank=0, size=2))


def assert_divided(group: RankGroup, engine: Fsdp2Engine, run: Any) -> None:
    """Each replica's ranks hold about equal parts of its trained parameters."""
    section = run.trainer.engine
    held = group.run(CountParameters())
    trained = [p for p in engine.policy.master.parameters() if p.requires_grad]
    divided = sum(p.numel() for p in trained if section.tensor_parallel == 1 or p.placements[-1].is_shard())
    # Norms, and half of an adapter, are equal on the ranks of tensor parallelism.
    copied = sum(p.numel() for p in trained) - divided
    assert divided > (0.3 if run.model.lora else 0.95) * (divided + copied)
    whole = divided + copied * section.tensor_parallel
    parts = section.ranks // section.replicate
    for replica in range(section.replicate):
        own = held[replica * parts : (replica + 1) * parts]
        assert sum(own) == whole
        assert max(own) < 1.3 * whole / parts


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"ranks": 4, "replicate": 3}, r"ranks \(4\) is not a multiple of replicate \(3\)"),
        ({"ranks": 4, "sequence_parallel": 3}, r"x sequence_parallel \(3\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(engine, message):
    with pytest.raises(ValidationError, match=message):
        the_run(Path("model"), **engine)
