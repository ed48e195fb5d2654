"""Layouts of ranks and what is trained on them, for the comparison with one process in `test_ranks.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import LossSpec, make_algorithm
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.policy_gradient import CriticConfig
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, LocalEngineConfig
from strop.models.tiny import make_model
from strop.training.backend import TrainingBackend, describe_zero
from strop.training.engine import local_critic, local_policy
from strop.training.ranks.group import RankGroup
from strop.training.ranks.rank import CRITIC, POLICY, Rank
from strop.types import GlobalCounts, SegmentRole, TrainingBatch
from tests.models.families import family_folder
from tests.models.vision.images import FAMILIES as VISION_FAMILIES
from tests.models.vision.images import experiences_with_images, vision_model
from tests.training.test_local_engine import batch_of, make_run

Values = Mapping[str, Any]
ADAMW: Values = {"type": "adamw", "lr": 0.01}
LOW_RATE: Values = {"type": "adamw", "lr": 0.001}
NO_NORMS: Values = {"weight_decay": 1.0, "decay_norms_and_biases": False}
LORA: Values = {"lora": {"rank": 4, "alpha": 8}}
MIXED: Values = {"compute_dtype": "bfloat16"}
KL: Values = {"type": "grpo", "kl_loss": {"coef": 0.1}}
FULL_KL: Values = {"type": "grpo", "kl_loss": {"coef": 0.1, "estimator": "full"}}
STEPS: Values = {"type": "reward_model", "loss": "cross_entropy"}
WHOLE_VOCABULARY = "vocabulary of an odd size"
OFFLOAD: Values = {"cpu_offload": True, "reference_cpu_offload": True}
_ZERO: Values = {
    "type": "deepspeed",
    "ranks": 2,
    # Small parameters are divided, too; by default ZeRO-3 leaves them whole.
    "config": {"zero_optimization": {"stage3_param_persistence_threshold": 0}},
}
_ZERO_OFFLOAD: Values = {"offload_optimizer": True, "offload_parameters": True}
LAYOUTS: Mapping[str, Values] = {
    "2 workers": {"type": "local", "workers": 2},
    "3 workers": {"type": "local", "workers": 3},
    "2 shards": {"ranks": 2},
    "2 shards kept": {"ranks": 2, "reshard_after_forward": False, "gradient_sync": "last_microbatch"},
    "2 shards offloaded": {"ranks": 2, "forward_prefetch": 1, "backward_prefetch": 2, **OFFLOAD},
    "2 replicas": {"ranks": 2, "replicate": 2},
    "sp 2": {"ranks": 2, "sequence_parallel": 2},
    "tp 2": {"ranks": 2, "tensor_parallel": 2},
    "ZeRO-1": {**_ZERO, "zero_stage": 1},
    "ZeRO-2": {**_ZERO, "zero_stage": 2},
    "ZeRO-2 offloaded": {**_ZERO, "zero_stage": 2, "offload_optimizer": True},
    "ZeRO-3": {**_ZERO, "zero_stage": 3},
    "ZeRO-3 offloaded": {**_ZERO, "zero_stage": 3, **_ZERO_OFFLOAD},
    "ZeRO-2, sp 2": {**_ZERO, "zero_stage": 2, "sequence_parallel": 2},
    "ZeRO-3, sp 2": {**_ZERO, "zero_stage": 3, "sequence_parallel": 2},
    "2 x 2": {"ranks": 4, "replicate": 2, "wrap": {"layers": ["Qwen2DecoderLayer"]}},
    "2 x 2 offloaded": {"ranks": 4, "replicate": 2, "gradient_sync": "last_microbatch", **OFFLOAD},
    "sp 4": {"ranks": 4, "sequence_parallel": 4, "gradient_sync": "last_microbatch"},
    "sp 2 x 2": {"ranks": 4, "sequence_parallel": 2},
    "replicas of sp 2": {"ranks": 4, "replicate": 2, "sequence_parallel": 2},
    "tp 2 x 2": {"ranks": 4, "tensor_parallel": 2},
    "tp 2, sp 2": {"ranks": 4, "tensor_parallel": 2, "sequence_parallel": 2},
    "replicas of tp 2": {"ranks": 4, "tensor_parallel": 2, "replicate": 2, **OFFLOAD},
    "ZeRO-3, sp 2 x 2": {**_ZERO, "ranks": 4, "zero_stage": 3, "sequence_parallel": 2},
}
"""`trainer.engine` of each layout, by number of ranks."""


def ranks_of(layout: str) -> int:
    """Number of processes of a layout."""
    section = LAYOUTS[layout]
    return int(section.get("ranks") or section["workers"])


@dataclass(frozen=True, slots=True)
class Job:
    """A kind of training: an algorithm, a model and an optimizer, and the tolerance of the results."""

    algorithm: Any = "grpo"
    model: Values = field(default_factory=dict)
    optimizer: Values = field(default_factory=lambda: ADAMW)
    tolerance: float = 1e-4
    weight_tolerance: float | None = None
    """Tolerance of the weights, if it is not that of the other results."""
    family: str | None = None
    """Family of the model; None for the small Qwen2 of these tests."""

    @property
    def trains_critic(self) -> bool:
        """Whether the critic is compared, and not the policy."""
        return self.algorithm == "ppo"

    @property
    def has_images(self) -> bool:
        """Whether the prompts have images."""
        return self.family in VISION_FAMILIES


def _of_family(family: str, model: Values = {}, algorithm: Any = "grpo") -> Job:  # noqa: B006
    return Job(algorithm, model, tolerance=1e-3, family=family)


def _with_images(family: str, model: Values = {}) -> Job:  # noqa: B006
    return Job(model=model, optimizer=LOW_RATE, tolerance=2e-4, family=family)


JOBS: Mapping[str, Job] = {
    "gradient": Job(optimizer={"type": "sgd", "lr": 1.0, "weight_decay": 0.0}),
    "KL": Job(KL),
    "full KL": Job(FULL_KL),
    "GSPO": Job({"type": "grpo", "policy_loss": "gspo"}),
    "LoRA": Job(KL, LORA),
    "LoRA, full KL": Job(FULL_KL, LORA),
    "recomputed": Job(
        model={
            "gradient_checkpointing": True,
            "gradient_checkpointing_interval": 2,
            "activation_offload": True,
        }
    ),
    "recomputed selectively": Job(KL, {"gradient_checkpointing": "selective"}),
    "recomputed selectively, LoRA": Job(model={**LORA, "gradient_checkpointing": "selective"}),
    "critic": Job("ppo"),
    "critic, LoRA": Job("ppo", LORA),
    "SFT": Job("sft"),
    "DPO": Job("dpo"),
    "KTO": Job("kto"),
    "BCO": Job("bco"),
    "reward model": Job("reward_model"),
    "reward model, LoRA": Job("reward_model", LORA),
    "labels of steps": Job(STEPS),
    "labels of steps, LoRA": Job(STEPS, LORA),
    # Adam moves a weight by up to 0.01 also where the gradient is only rounding: on some CPUs two differ by 1.5e-4.
    "teacher": Job("reverse_kl", weight_tolerance=1e-3),
    "teacher, sampled": Job("sampled_kl", weight_tolerance=1e-3),
    "bfloat16": Job(model=MIXED, tolerance=0.05),
    "bfloat16, LoRA": Job(model={**MIXED, **LORA}, tolerance=0.05),
    "SGD with momentum": Job(optimizer={"type": "sgd", "lr": 0.01, "momentum": 0.9, **NO_NORMS}),
    "Adagrad": Job(optimizer={"type": "adagrad", "lr": 0.01}),
    # RMSprop's first update is 10 times its learning rate, and rounding of gradients near 0 is multiplied by it.
    "RMSprop": Job(optimizer={"type": "rmsprop", "lr": 0.001, "momentum": 0.5, **NO_NORMS}),
}
"""The plain gradient is that of SGD with learning rate 1 and no clipping; the others are updates of AdamW at 0.01, or
of an optimizer of their own."""
FAMILY_JOBS: Mapping[str, Job] = {
    "mixtral": _of_family("mixtral"),
    "mixtral, LoRA": _of_family("mixtral", LORA),
    "lfm2, LoRA": _of_family("lfm2", LORA),
    "mamba": _of_family("mamba"),
    "llama4_text": _of_family("llama4_text"),
    "gemma2": _of_family("gemma2"),
    **{
        f"{family}, full KL": _of_family(family, {}, FULL_KL)
        for family in ("qwen3", "gemma2", "phi3", "cohere")
    },
    WHOLE_VOCABULARY: _of_family(WHOLE_VOCABULARY),
    "images in a grid": _with_images("qwen3_vl"),
    "images, frozen tower": _with_images("qwen2_5_vl", {"freeze_vision": True}),
    "images, adapter in the tower": _with_images(
        "qwen2_vl", {"lora": {"rank": 4, "alpha": 8, "exclude": []}}
    ),
    "images in tiles": _with_images("smolvlm"),
    "images that see all of themselves": _with_images("gemma3"),
    "images in tiles of a grid": _with_images("internvl"),
}
"""Norms of heads (Qwen3), scaled embeddings and softcaps (Gemma 2), joined projections (Phi-3), logit scales (Cohere),
experts, convolutions, and a vocabulary that two ranks do not divide."""


def folder_of(job: Job, small: Path, parent: Path) -> Path:
    """The folder of a job's model: `small`, or one made in `parent`."""
    if job.family is None:
        return small
    if job.has_images:
        return vision_model(job.family)
    if job.family != WHOLE_VOCABULARY:
        return family_folder(parent, job.family)
    path = make_model(parent / "model", ["one and one"], vocab_size=280, hidden_size=32, tied=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size | 1)
    model.save_pretrained(path)
    return path


def make_runs(folder: Path, teacher: Path, job: Job, layout: Values) -> tuple[Run, Run]:
    """The run on a layout, and the same run in one process."""
    algorithm = job.algorithm
    if algorithm in ("reverse_kl", "sampled_kl"):
        teachers = [{"path": str(teacher), "dtype": "float32"}]
        section = {"teachers": teachers, "loss": {"divergence": algorithm}}
        algorithm = {"type": "distillation", "distillation": section}
    microbatch = "80 tokens" if job.has_images else "60 tokens"
    trainer: dict[str, Any] = {"optimizer": job.optimizer, "microbatch": microbatch}
    if job.optimizer["lr"] == 1.0:
        trainer["max_grad_norm"] = None
    sections: dict[str, Any] = {"algorithm": algorithm}
    columns = {
        "sft": {"response": "answer"},
        "dpo": {"chosen": "chosen", "rejected": "rejected"},
        "reward_model": {"chosen": "chosen", "rejected": "rejected"},
        "kto": {"response": "answer", "label": "label"},
        "bco": {"response": "answer", "label": "label"},
    }
    if isinstance(algorithm, str) and algorithm in columns:
        sections["data"] = {"train": {"path": "tasks.jsonl", **columns[algorithm]}}
    if algorithm is STEPS:
        sections["data"] = {"train": {"path": "tasks.jsonl", "steps": "steps", "label": "labels"}}
    engine = {"type": "fsdp2", **layout, "device": "cpu"}
    ranked, alone = (
        make_run(folder, job.model, trainer=trainer | {"engine": each}, **sections)
        for each in (engine, {"device": "cpu"})
    )
    return ranked, alone


def batch_for(job: Job, seed: int) -> TrainingBatch:
    """The data of one update: random answers with random advantages, pairs for DPO, labels for KTO and BCO, labels of
    every second token for steps, returns for a critic. With images, the third update has text only."""
    if job.has_images:
        return _batch_with_images(job.family or "", seed)
    batch = batch_of(seed)
    if job.algorithm == "sft":
        return TrainingBatch([replace(e, role="sft") for e in batch.experiences])
    if job.algorithm in ("dpo", "reward_model"):
        roles: tuple[SegmentRole, SegmentRole] = ("chosen", "rejected")
        pairs = [
            replace(e, role=roles[i % 2], pair=f"{seed}, {i // 2}") for i, e in enumerate(batch.experiences)
        ]
        margins = [i % 2 / 2 for i in range(len(pairs))] if job.algorithm == "reward_model" else None
        return TrainingBatch(pairs, returns=margins)
    if job.algorithm is STEPS:
        ends = [each.loss_mask & (np.arange(len(each.loss_mask)) % 2 == 0) for each in batch.experiences]
        steps = [
            replace(e, role="stepwise", loss_mask=mask)
            for e, mask in zip(batch.experiences, ends, strict=True)
        ]
        random = np.random.default_rng(seed)
        return TrainingBatch(steps, returns=[random.integers(0, 2, len(e)).astype(np.float32) for e in ends])
    if job.algorithm in ("kto", "bco"):
        labels: tuple[SegmentRole, SegmentRole] = ("desirable", "undesirable")
        return TrainingBatch([replace(e, role=labels[i % 2]) for i, e in enumerate(batch.experiences)])
    if job.trains_critic:
        ones = [np.ones(len(e.token_ids), np.float32) for e in batch.experiences]
        return replace(batch, values=[0 * each for each in ones], returns=ones)
    return batch


@cache
def _images_folder() -> Path:
    return Path(mkdtemp())


def _batch_with_images(family: str, seed: int) -> TrainingBatch:
    found = experiences_with_images(family, _images_folder())
    if seed == 2:
        found = [each for each in found if not each.media]
    return TrainingBatch(found, advantages=np.random.default_rng(seed).normal(size=len(found)).tolist())


class PolicyTrainee:
    """The policy of an engine: its updates, and what it computes of experiences."""

    model = POLICY

    def __init__(self, engine: Any, run: Run, job: Job) -> None:
        self.engine = engine
        self._run = run
        self._job = job
        compared = run.algorithm.type in ("dpo", "kto", "bco")
        batches = {seed: batch_for(job, seed) for seed in range(4 if compared else 0)}
        self._references = {
            seed: engine.token_values(each.experiences, "logprobs") for seed, each in batches.items()
        }

    def learn(self, seeds: Sequence[int]) -> list[dict[str, float]]:
        """One update for each seed: its metrics and the norm of its gradient."""
        loss, rows, algorithm = LossSpec(self._run.algorithm, 64), [], self._run.algorithm
        kl = getattr(algorithm, "kl_loss", None)
        longest = self._run.data.max_prompt_tokens + self._run.data.max_response_tokens
        # Its state is that of the run, not the engine's.
        reference_point = make_algorithm(algorithm).reference_point(self.engine, longest)
        for seed in seeds:
            batch, counts = batch_for(self._job, seed), None
            if reference_point is not None:
                point = reference_point.of_update(batch.experiences, self._references[seed])
                counts = replace(GlobalCounts.of(batch.experiences), reference_point=point)
            if seed in self._references:
                batch = replace(batch, ref_logprobs=self._references[seed])
            elif kl is not None and kl.estimator != "full":
                batch = replace(
                    batch, ref_logprobs=self.engine.token_values(batch.experiences, "reference_logprobs")
                )
            if algorithm.type == "distillation":
                batch = replace(
                    batch, teacher_logprobs=self.engine.token_values(batch.experiences, "teacher_logprobs")
                )
            rows.append(
                {**self.engine.forward_backward(batch, loss, counts), "grad_norm": self.engine.step()}
            )
        return rows

    def outputs(self) -> dict[str, Any]:
        """Values that the engine computes of experiences without a gradient."""
        batch = batch_for(self._job, 9)
        loss = LossSpec(self._run.algorithm, 64)
        if self._run.algorithm.type == "reward_model":
            return {"scores": self.engine.token_values(batch.experiences, "scores")}
        found = {
            "log-probs": self.engine.token_values(batch.experiences, "logprobs"),
            "entropies": self.engine.token_values(batch.experiences, "entropies"),
        }
        if self._job.algorithm is FULL_KL:
            found["KL"] = self.engine.token_values(batch.experiences, "reference_kl")
            found["squares"] = self.engine.token_values(batch.experiences, "squared_probabilities")
            found["effects"] = self.engine.token_values(batch.experiences, "expected_entropy_effects")
        if self._run.algorithm.type == "distillation":
            found["teacher"] = self.engine.token_values(batch.experiences, "teacher_logprobs")
        if self._job.algorithm == "sft":
            found["loss"] = self.engine.evaluate_loss(batch, loss)
        return found

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in self.engine.iter_weights()}


class CriticTrainee:
    """The critic of an engine."""

    model = CRITIC

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        engine.set_lr(0.01)

    def learn(self, seeds: Sequence[int]) -> list[dict[str, float]]:
        """One update for each seed."""
        rows = []
        for seed in seeds:
            found = self.engine.forward_backward(batch_for(JOBS["critic"], seed), ValueLoss(None))
            rows.append({**found, "grad_norm": self.engine.step()})
        return rows

    def outputs(self) -> dict[str, Any]:
        return {"values": self.engine.values(batch_of(9).experiences)}

    def weights(self) -> dict[str, Tensor]:
        """None: what the critic computes is compared."""
        return {}


def _critic(run: Run) -> CriticConfig:
    assert isinstance(run.algorithm, PpoConfig)
    return run.algorithm.critic


def alone(run: Run, job: Job) -> PolicyTrainee | CriticTrainee:
    """The job in this process."""
    if job.trains_critic:
        return CriticTrainee(local_critic(run, _critic(run)))
    return PolicyTrainee(local_policy(run), run, job)


def on_ranks(group: RankGroup, run: Run, job: Job) -> PolicyTrainee | CriticTrainee:
    """The job on the ranks of a group."""
    section = run.trainer.engine
    described = describe_zero(section, "cpu") if isinstance(section, DeepSpeedEngineConfig) else ""
    backend = TrainingBackend(run, group, described)
    if job.trains_critic:
        return CriticTrainee(backend.critic(_critic(run)))
    engine = backend.policy()
    if isinstance(section, DeepSpeedEngineConfig):
        assert f"DeepSpeed ZeRO-{section.zero_stage}" in engine.description
    return PolicyTrainee(engine, run, job)


def gap(found: Any, expected: Any) -> float:
    """The largest difference of two structures of numbers, |found - expected| / (1 + |expected|); NaN if one is."""
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        return _largest(gap(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        return _largest(gap(one, other) for one, other in zip(found, expected, strict=True))
    one, other = (torch.as_tensor(each).double() for each in (found, expected))
    assert one.shape == other.shape
    return float(((one - other).abs() / (1 + other.abs())).max()) if one.numel() else 0.0


def _largest(gaps: Any) -> float:
    return float(torch.tensor([0.0, *gaps], dtype=torch.float64).max())


def count_held(rank: Rank, name: str) -> tuple[int, int, int]:
    """The numbers that a rank holds between two passes: of a model's trained parameters and, with DeepSpeed, of all
    parameters and of the optimizer's masters."""
    model = rank.model(name)
    every = list(model.master.parameters())
    if hasattr(every[0], "to_local"):
        return sum(p.to_local().numel() for p in every if p.requires_grad), 0, 0
    held = sum(getattr(p, "ds_tensor", p).numel() for p in every)
    return 0, held, sum(part.numel() for part in model._state.master_parts)


def count_updated(rank: Rank, name: str) -> int:
    """The number of elements of parameters with a state in the optimizer of a rank."""
    optimizer = rank.model(name)._optimizer
    return sum(parameter.numel() for parameter, state in optimizer.state.items() if state)


def assert_divided(group: RankGroup, model: str, run: Run) -> None:
    """Each replica's ranks hold about equal parts of a model's trained parameters."""
    section = run.trainer.engine
    if isinstance(section, LocalEngineConfig):
        updated = group.run(count_updated, model)
        assert len(updated) == section.workers
        assert max(updated) < 0.8 * sum(updated) and all(updated)
        return
    held = group.run(count_held, model)
    assert len(held) == section.ranks > 1
    parameters = list(group.first.model(model).master.parameters())
    if isinstance(section, DeepSpeedEngineConfig):
        sizes = {p: getattr(p, "ds_numel", p.numel()) for p in parameters}
        trained = sum(size for p, size in sizes.items() if p.requires_grad)
        parts = section.ranks if section.zero_stage == 3 else 1
        for _, every, masters in held:
            assert abs(masters - trained / section.ranks) < 0.02 * trained
            assert abs(every - sum(sizes.values()) / parts) < 0.02 * sum(sizes.values())
        return
    assert isinstance(section, Fsdp2EngineConfig)
    trained_ones = [p for p in parameters if p.requires_grad]
    divided = sum(
        p.numel() for p in trained_ones if section.tensor_parallel == 1 or p.placements[-1].is_shard()
    )
    # Norms, and half of an adapter, are equal on the ranks of tensor parallelism.
    copied = sum(p.numel() for p in trained_ones) - divided
    assert divided > (0.3 if run.model.lora else 0.95) * (divided + copied)
    whole = divided + copied * section.tensor_parallel
    parts = section.ranks // section.replicate
    for replica in range(section.replicate):
        own = [count for count, _, _ in held[replica * parts : (replica + 1) * parts]]
        assert sum(own) == whole
        assert max(own) < 1.3 * whole / parts
