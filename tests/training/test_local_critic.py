"""The critic's model and optimizer: updates, precision, exact resuming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strop.algorithms.losses.value_losses import ValueLoss
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.units import Amount
from strop.data.packing import pack
from strop.errors import CheckpointError, ModelError, TrainingError
from strop.models.tiny import make_model
from strop.training.parallel.parallelize import single_device
from strop.training.specs import CriticSpec
from strop.training.trained_models import CriticModel
from strop.types import GlobalCounts, MicroBatch, TrainingBatch
from tests.training.test_local_engine import SETTINGS, experiences, make_run


def make_engine(folder: Path, policy: dict[str, object] = {}, **critic: object) -> CriticModel:  # noqa: B006
    """A critic of the policy's model, unless `critic` says otherwise."""
    values = {"type": "ppo", "critic": {"optimizer": {"lr": 0.01}, **critic}}
    run: Run = make_run(folder, policy, algorithm=values)
    assert isinstance(run.algorithm, PpoConfig)
    return CriticModel(CriticSpec.of(run, run.algorithm.critic), single_device("cpu"))


def micro_batches(engine: CriticModel, tokens: int = 10_000, *, seed: int = 0) -> list[MicroBatch]:
    """Micro-batch whose returns are the parity of the target's token, which a critic can learn."""
    batch = experiences(seed)
    zeros = [e.sampler_logprobs for e in batch]
    returns = [(e.token_ids % 2).astype("float32") for e in batch]
    return pack(
        TrainingBatch(batch, values=zeros, returns=returns),
        Amount(tokens, "tokens"),
        share_prompts=engine.supports_shared_prompts,
        device=engine.device,
    )


def update(engine: CriticModel, batches: Sequence[MicroBatch]) -> tuple[float, float]:
    """The loss, and the gradient's norm."""
    counts = GlobalCounts(sum(int(b.loss_mask.sum()) for b in batches), 12)
    loss = engine.forward_backward(batches, ValueLoss(None), counts)["loss"]
    return loss, engine.step()


@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 4}}], ids=["full", "lora"])
def test_updates_lower_the_loss(folder: Path, model: dict[str, object]) -> None:
    engine = make_engine(folder, model)
    losses = [update(engine, micro_batches(engine))[0] for _ in range(10)]
    assert losses[-1] < losses[0] / 2


def test_the_update_does_not_depend_on_the_micro_batches(folder: Path) -> None:
    engines = [make_engine(folder) for _ in range(3)]
    for engine in engines:
        torch.nn.init.ones_(engine.model.head.weight)
    packings = [micro_batches(engines[0]), micro_batches(engines[1], 30)[::-1]]
    engines[2].supports_shared_prompts = False
    packings.append(micro_batches(engines[2], 60))
    assert [len(packing) for packing in packings] > [1, 1, 1]
    outcomes = [update(engine, packing) for engine, packing in zip(engines, packings, strict=True)]
    for other in outcomes[1:]:
        assert other == pytest.approx(outcomes[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", SETTINGS.values(), ids=SETTINGS)
def test_a_resumed_critic_is_the_uninterrupted_one_to_the_bit(
    folder: Path, tmp_path: Path, model: dict[str, object]
) -> None:
    def train(engine: CriticModel, updates: Sequence[int]) -> list[tuple[float, float]]:
        return [update(engine, micro_batches(engine, 60, seed=n)) for n in updates]

    engine = make_engine(folder, model)
    train(engine, range(3))
    engine.snapshot().begin_write(tmp_path)()
    state = torch.get_rng_state()
    expected = train(engine, range(3, 6))
    resumed = make_engine(folder, model)
    resumed.load(tmp_path)
    torch.set_rng_state(state)  # which the policy's engine keeps
    assert train(resumed, range(3, 6)) == expected
    (batch,) = micro_batches(engine)
    assert torch.equal(resumed.values([batch])[0], engine.values([batch])[0])
    assert not engine.values([batch])[0].requires_grad


def test_building_a_critic_keeps_the_random_state(folder: Path) -> None:
    before = torch.get_rng_state()
    one, other = (make_engine(folder, {"lora": {"rank": 4}}) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for (name, first), second in zip(one.master.named_parameters(), other.master.parameters(), strict=True):
        assert torch.equal(first, second), name


def test_mixed_precision(folder: Path) -> None:
    engine, exact = make_engine(folder, {"compute_dtype": "bfloat16"}), make_engine(folder)
    for each in (engine, exact):
        for _ in range(3):
            update(each, micro_batches(each))
    assert all(p.dtype == torch.float32 for p in engine.master.parameters())
    assert all(p.dtype == torch.bfloat16 for p in engine.model.parameters())
    (batch,) = micro_batches(engine)
    values = engine.values([batch])[0]
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, exact.values([batch])[0], atol=0.15, rtol=0.1)


def test_a_critic_with_its_own_model(folder: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", ["one and one"], vocab_size=280, hidden_size=16, layers=1)
    engine = make_engine(folder, {"lora": {"rank": 4}}, model={"path": str(other)})
    assert engine.model.head.in_features == 16
    assert all(p.requires_grad for p in engine.master.parameters())
    assert update(engine, micro_batches(engine))[0] > 0


def test_a_missing_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"algorithm\.critic: .* there is no folder"):
        make_engine(folder, model={"path": str(tmp_path / "nowhere")})


def test_a_loss_that_is_not_finite_changes_nothing(folder: Path) -> None:
    engine = make_engine(folder)
    (batch,) = micro_batches(engine)
    assert batch.returns is not None
    with pytest.raises(TrainingError, match=r"algorithm\.critic\.optimizer\.lr"):
        update(engine, [replace(batch, returns=batch.returns * float("inf"))])
    assert all(p.grad is None for p in engine.master.parameters())


def test_weights_of_another_critic_are_refused(folder: Path, tmp_path: Path) -> None:
    make_engine(folder).snapshot().begin_write(tmp_path)()
    with pytest.raises(CheckpointError, match="another model"):
        make_engine(folder, {"lora": {"rank": 4}}).load(tmp_path)
