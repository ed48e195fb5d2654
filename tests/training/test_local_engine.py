"""The policy's model and optimizer: gradients, updates, saving, errors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from strop.config.schema import Run
from strop.config.units import Amount
from strop.data.packing import pack
from strop.errors import CheckpointError, PlacementError, TrainingError
from strop.training.device import find_device
from strop.training.parallel.parallelize import single_device
from strop.training.specs import PolicySpec
from strop.training.trained_models import PolicyModel
from strop.types import Experience, GlobalCounts, LossOutput, MicroBatch, TokenOutputs, TrainingBatch
from tests.models.models import experience

KL = {"type": "grpo", "kl_loss": {"coef": 0.1}}


def make_run(folder: Path, model: Mapping[str, object] = {}, **sections: object) -> Run:
    values = {
        "model": {"path": str(folder), **(model or {})},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "exact",
        "trainer": {"optimizer": {"type": "adamw", "lr": 0.01}, "engine": {"device": "cpu"}},
    }
    return Run.model_validate(values | sections)


def make_policy(run: Run) -> PolicyModel:
    """The policy of a run, whole in this process."""
    return PolicyModel(PolicySpec.of(run), single_device(run.trainer.engine.device))


def batch_of(seed: int = 0) -> TrainingBatch:
    """Experiences with random advantages."""
    found = experiences(seed)
    return TrainingBatch(found, advantages=np.random.default_rng(seed).normal(size=len(found)).tolist())


def experiences(seed: int = 0) -> list[Experience]:
    random = np.random.default_rng(seed)
    result = []
    for group in range(3):
        prompt = random.integers(5, 250, 6).tolist()
        for index in range(4):
            answer = random.integers(5, 250, random.integers(2, 12)).tolist()
            result.append(experience(prompt, answer, group=str(group), index=index, temperature=0.9))
    return result


def micro_batches(engine: PolicyModel, tokens: int = 60, *, seed: int = 0) -> list[MicroBatch]:
    limit = Amount(tokens, "tokens")
    return pack(batch_of(seed), limit, share_prompts=engine.supports_shared_prompts, device=engine.device)


def loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    total = -(micro_batch.advantages * outputs.logprobs).sum() / counts.tokens
    metrics = {} if outputs.entropy is None else {"entropy": outputs.entropy.detach().sum() / counts.tokens}
    return LossOutput(total, metrics)


def accumulate(engine: PolicyModel, batches: Sequence[MicroBatch]) -> dict[str, float]:
    counts = GlobalCounts(sum(int(b.loss_mask.sum()) for b in batches), 12)
    return dict(engine.forward_backward(batches, loss, counts, entropy=True))


def gradient(engine: PolicyModel) -> Tensor:
    return torch.cat([p.grad.flatten() for p in engine.master.parameters() if p.grad is not None])


def weights(engine: PolicyModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.iter_weights()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_updates_lower_the_loss(folder: Path) -> None:
    engine = make_policy(make_run(folder))
    losses = []
    for _ in range(5):
        losses.append(accumulate(engine, micro_batches(engine))["loss"])
        assert engine.step() > 0
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_metrics_and_gradient_do_not_depend_on_the_micro_batches(
    folder: Path, model: dict[str, object]
) -> None:
    engine = make_policy(make_run(folder, model))
    whole = accumulate(engine, micro_batches(engine, 10_000))
    expected = gradient(engine)
    engine.step()
    engine = make_policy(make_run(folder, model))
    parts = accumulate(engine, micro_batches(engine, 30)[::-1])
    assert (gradient(engine) - expected).norm() < 1e-5 * expected.norm()
    assert parts.keys() == {"loss", "entropy"}
    assert parts == pytest.approx(whole, rel=1e-4)


def test_an_update_matches_torch(folder: Path) -> None:
    """Clip to 0.1, then AdamW with weight decay, against plain torch on the same gradient."""
    optimizer = {"type": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.8, 0.9]}
    engine = make_policy(make_run(folder, trainer={"optimizer": optimizer, "max_grad_norm": 0.1}))
    accumulate(engine, micro_batches(engine))
    model = AutoModelForCausalLM.from_pretrained(folder)
    plain = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1, betas=(0.8, 0.9))
    for ours, theirs in zip(engine.master.parameters(), model.parameters(), strict=True):
        assert ours.grad is not None
        theirs.grad = ours.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    plain.step()
    engine.set_lr(0.003)
    assert engine.step() == pytest.approx(float(norm))
    assert all(p.grad is None for p in engine.master.parameters())
    for name, theirs in model.named_parameters():
        torch.testing.assert_close(dict(engine.iter_weights())[name], theirs, atol=1e-6, rtol=1e-6)


def test_without_clipping(folder: Path) -> None:
    engine = make_policy(make_run(folder, trainer={"max_grad_norm": None}))
    accumulate(engine, micro_batches(engine))
    expected = gradient(engine).norm()
    assert engine.step() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_the_reference_is_the_model_at_the_start(folder: Path, model: dict[str, object]) -> None:
    engine = make_policy(make_run(folder, model, algorithm=KL))
    (batch,) = micro_batches(engine, 10_000)
    start = engine.token_values([batch], "logprobs")[0]
    assert not start.requires_grad
    assert torch.equal(engine.token_values([batch], "reference_logprobs")[0], start)
    for _ in range(2):
        accumulate(engine, [batch])
        engine.step()
    assert torch.equal(engine.token_values([batch], "reference_logprobs")[0], start)
    assert (engine.token_values([batch], "logprobs")[0] - start).abs().max() > 1e-4


def test_without_a_reference_model(folder: Path) -> None:
    engine = make_policy(make_run(folder))
    with pytest.raises(ValueError, match="without a reference model"):
        engine.token_values(micro_batches(engine)[:1], "reference_logprobs")


def test_mixed_precision(folder: Path) -> None:
    """The optimizer moves float32 parameters; what computes, and is published, is their rounding."""
    engine = make_policy(make_run(folder, {"compute_dtype": "bfloat16"}, algorithm=KL))
    exact = make_policy(make_run(folder))
    for each in (engine, exact):
        accumulate(each, micro_batches(each))
    assert gradient(engine).dtype == torch.float32
    assert torch.cosine_similarity(gradient(engine), gradient(exact), dim=0) > 0.99
    engine.step()
    for name, master in engine.master.named_parameters():
        assert master.dtype == torch.float32
        assert torch.equal(dict(engine.iter_weights())[name], master.bfloat16())
    assert any((p != p.bfloat16()).any() for p in engine.master.parameters())


def test_mixed_precision_with_an_adapter_shares_the_frozen_weights(folder: Path) -> None:
    engine = make_policy(make_run(folder, {"compute_dtype": "bfloat16", "lora": {"rank": 4}}))
    doubles = dict(engine.model.named_parameters())
    for name, parameter in engine.master.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16)
        assert (doubles[name] is parameter) == (not parameter.requires_grad)


SETTINGS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed": {"compute_dtype": "bfloat16"},
    "lora with dropout": {"lora": {"rank": 4, "dropout": 0.2}},
    "mixed lora": {"compute_dtype": "bfloat16", "lora": {"rank": 4, "dropout": 0.2}},
    "checkpointing": {"gradient_checkpointing": True},
}
for library in ("bitsandbytes", "torchao"):
    if find_spec(library):
        quantization = {"library": library, "double": True}
        SETTINGS[f"quantized by {library}"] = {"lora": {"rank": 4}, "quantization": quantization}


@pytest.mark.slow
@pytest.mark.parametrize("model", SETTINGS.values(), ids=SETTINGS)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    folder: Path, tmp_path: Path, model: dict[str, object]
) -> None:
    def train(engine: PolicyModel, updates: Sequence[int]) -> list[object]:
        return [(accumulate(engine, micro_batches(engine, seed=n)), engine.step()) for n in updates]

    engine = make_policy(make_run(folder, model))
    train(engine, range(3))
    engine.snapshot().begin_write(tmp_path)()
    expected = train(engine, range(3, 6))
    resumed = make_policy(make_run(folder, model))
    resumed.load(tmp_path)
    assert train(resumed, range(3, 6)) == expected
    assert same(weights(resumed), weights(engine))
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


def test_only_the_adapter_is_saved(folder: Path, tmp_path: Path) -> None:
    make_policy(make_run(folder, {"lora": {"rank": 4}})).snapshot().begin_write(tmp_path)()
    full = (folder / "model.safetensors").stat().st_size
    assert (tmp_path / "weights.safetensors").stat().st_size < full / 2


def test_save_optimizer_false_omits_the_optimizer(folder: Path, tmp_path: Path) -> None:
    run = make_run(folder, checkpoint={"save_optimizer": False})
    engine = make_policy(run)
    accumulate(engine, micro_batches(engine))
    engine.step()
    engine.snapshot().begin_write(tmp_path)()
    assert not (tmp_path / "optimizer.safetensors").exists()
    again = make_policy(run)
    again.load(tmp_path)
    assert same(weights(again), weights(engine))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        make_policy(make_run(folder)).load(tmp_path)


def test_resume_optimizer_false_resets_the_optimizer(folder: Path, tmp_path: Path) -> None:
    engine = make_policy(make_run(folder))
    accumulate(engine, micro_batches(engine))
    engine.step()
    engine.snapshot().begin_write(tmp_path)()
    again = make_policy(make_run(folder, checkpoint={"resume_optimizer": False}))
    again.load(tmp_path)
    assert same(weights(again), weights(engine))
    for each in (engine, again):
        accumulate(each, micro_batches(each, seed=1))
        each.step()
    assert not same(weights(again), weights(engine)), "Adam's averages are not the old ones"


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    make_policy(make_run(folder)).snapshot().begin_write(tmp_path)()
    with pytest.raises(CheckpointError, match="another model"):
        make_policy(make_run(folder, {"lora": {"rank": 4}})).load(tmp_path)


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    engine = make_policy(make_run(folder))
    engine.snapshot().begin_write(tmp_path)()
    for name in ("weights", "optimizer", "rng"):
        broken = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{name}")))
        (broken / f"{name}.safetensors").write_bytes(b"not tensors")
        with pytest.raises(CheckpointError, match=f"{name}.safetensors cannot be read"):
            engine.load(broken)


def test_a_loss_that_is_not_finite_changes_nothing(folder: Path) -> None:
    engine = make_policy(make_run(folder))
    before = weights(engine)
    batch = micro_batches(engine)[0]
    batch = replace(batch, advantages=batch.advantages * float("inf"))
    with pytest.raises(TrainingError, match="loss of a micro-batch is nan"):
        accumulate(engine, [batch])
    assert all(p.grad is None for p in engine.master.parameters())
    assert same(weights(engine), before)


def test_a_gradient_that_is_not_finite_changes_nothing(folder: Path) -> None:
    engine = make_policy(make_run(folder))
    before = weights(engine)
    accumulate(engine, micro_batches(engine))
    parameter = next(engine.master.parameters())
    assert parameter.grad is not None
    parameter.grad[0] = float("inf")
    with pytest.raises(TrainingError, match="norm of the gradient is inf"):
        engine.step()
    assert same(weights(engine), before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu() -> None:
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    with pytest.raises(PlacementError, match="no GPU on this machine"):
        find_device("cuda")
