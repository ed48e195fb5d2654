"""Every loss's gradient, summed over processes that have a part of an update's micro-batches each.

    python -m tests.training.halves MODEL OUT RENDEZVOUS RANK WORLD

`test_two_processes.py` starts this. Rank 0 writes gradients and metrics, each under its case's name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import Tensor

from strop.algorithms import table
from strop.algorithms.value_losses import ValueLoss
from strop.config.schema.algorithm import Aggregation, Algorithm, KlEstimator, Ppo
from strop.config.units import Amount
from strop.data.pack import pack
from strop.run.passes import counts_of
from strop.training.learner import Learner
from strop.training.single import SingleEngine
from strop.training.value import ValueEngine
from strop.types import Experience, Floats, MicroBatch
from tests.models.models import experience
from tests.training.test_single import make_run

LONGEST = 12
POLICY_LOSSES: Sequence[Mapping[str, Any]] = (
    {"type": "clip", "clip_low": 0.1, "clip_high": 0.2},
    {"type": "gspo", "clip_low": 0.05, "clip_high": 0.05},
    {"type": "cispo", "clip_low": 0.1, "clip_high": 0.1},
    {"type": "gpg"},
    {"type": "opmd", "tau": 0.5},
)
PARTS: Mapping[str, Mapping[str, Any]] = {
    **{f"kl {name}": {"kl_loss": {"estimator": name, "coef": 0.5}} for name in get_args(KlEstimator)},
    "entropy": {"entropy_coef": 0.1},
    "token correction": {"importance_correction": {"level": "token", "cap": 1.1}},
    "sequence correction": {"importance_correction": {"level": "sequence", "cap": 1.5}},
}


def cases() -> dict[str, Algorithm]:
    """By what they are here for."""
    sections = {
        f"{loss['type']}, {aggregation}": {"type": "grpo", "policy_loss": loss, "aggregation": aggregation}
        for loss in POLICY_LOSSES
        for aggregation in get_args(Aggregation)
    }
    sections |= {part: {"type": "grpo", **section} for part, section in PARTS.items()}
    sections |= {"sft": {"type": "sft"}, "dpo": {"type": "dpo"}, "mix": {"type": "mix", "mu": 0.3}}
    read = TypeAdapter(Algorithm)
    return {name: read.validate_python(section) for name, section in sections.items()}


def experiences(kind: str) -> list[Experience]:
    """Rollouts; under dpo pairs of answers, under sft given ones, and under mix both kinds."""
    random = np.random.default_rng(0)
    found: list[Experience] = []
    for group in range(5):
        prompt = random.integers(5, 250, 6)
        for index in range(2 if kind == "dpo" else 3):
            answer = random.integers(5, 250, random.integers(2, LONGEST))
            fields: dict[str, Any] = {"group": str(group), "index": index, "temperature": 0.9}
            if kind == "dpo":
                fields |= {"role": ("chosen", "rejected")[index], "pair": str(group)}
            if kind == "sft" or (kind == "mix" and group > 2):
                fields["role"] = "sft"
            found.append(experience(prompt, answer, **fields))
    return found


def near(logprobs: Sequence[Floats], seed: int) -> list[Floats]:
    """As if by a policy that is a little apart."""
    random = np.random.default_rng(seed)
    return [each + random.normal(scale=0.2, size=len(each)).astype(np.float32) for each in logprobs]


def micro_batches(engine: SingleEngine | ValueEngine, kind: str, logprobs: list[Floats]) -> list[MicroBatch]:
    """Many small ones, with all that any loss reads."""
    batch = [
        replace(e, sampler_logprobs=sampler, policy_logprobs=sampler)
        for e, sampler in zip(experiences(kind), near(logprobs, 1), strict=True)
    ]
    return pack(
        batch,
        near([np.zeros_like(each) for each in logprobs], 2),
        Amount(40, "tokens"),
        share_prompts=engine.shares_prompts,
        device=engine.device,
        old_logprobs=near(logprobs, 3),
        ref_logprobs=near(logprobs, 4),
        values=near(logprobs, 5),
        returns=near(logprobs, 6),
    )


def summed(engine: Learner, metrics: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    """The gradient, and the metrics in their order, over all processes; the gradient is forgotten."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in engine.master.parameters()]
    gradient = torch.cat([part.flatten() for part in parts])
    values = torch.tensor(list(metrics.values()), dtype=torch.float64)
    engine.master.zero_grad()
    if dist.is_initialized():
        dist.all_reduce(gradient)
        dist.all_reduce(values)
    return gradient, values


def gradients(folder: Path, rank: int, world: int) -> dict[str, Tensor]:
    """By case; each process learns from every `world`-th micro-batch, from its rank on."""
    engine = SingleEngine(make_run(folder, algorithm={"type": "grpo", "kl_loss": {}}))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in engine.master.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=0.05)
    critic = ValueEngine(make_run(folder), Ppo().critic)
    # As unlikely as the tokens of a random model are.
    guess = {
        kind: [np.full(len(e.token_ids), -5.6, dtype=np.float32) for e in experiences(kind)]
        for kind in ("grpo", "sft", "dpo", "mix")
    }
    learn = {
        name: (
            engine,
            section.type,
            partial(
                engine.forward_backward,
                loss_fn=table.loss_fn(section, max_response_tokens=LONGEST),
                entropy=table.measures_entropy(section),
                divergence=table.measures_divergence(section),
            ),
        )
        for name, section in cases().items()
    }
    learn["value"] = (critic, "grpo", partial(critic.forward_backward, loss_fn=ValueLoss(0.1)))
    found: dict[str, Tensor] = {}
    for name, (learner, kind, forward_backward) in learn.items():
        mine = micro_batches(learner, kind, guess[kind])[rank::world]
        assert mine, "fewer micro-batches than processes"
        metrics = forward_backward(mine, counts=counts_of(experiences(kind)))
        found[f"{name}: gradient"], found[f"{name}: metrics"] = summed(learner, metrics)
    return found


def main(folder: str, out: str, rendezvous: str, rank: str, world: str) -> None:
    """One of the processes."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world))
    assert dist.get_world_size() == int(world)
    found = gradients(Path(folder), int(rank), int(world))
    if rank == "0":
        save_file(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
