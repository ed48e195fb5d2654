"""A user's own advantage and loss functions: checks at the start, and GRPO written as custom functions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from strop.algorithms import registry
from strop.algorithms.custom import check_custom_functions
from strop.algorithms.loss_spec import LossSpec
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import CustomConfig
from strop.config.schema.group_baselines import GrpoConfig
from strop.errors import ConfigError
from strop.models.tiny import make_model
from strop.runs.metrics import metric_of
from strop.training.backends.fsdp2 import Fsdp2Engine
from strop.training.backends.local import LocalEngine
from strop.training.ranks.group import RankGroup
from strop.types import TrainingBatch
from tests.training.test_local_engine import batch_of, make_run

FILE = Path(__file__).with_name("custom_grpo.py")
CUSTOM = CustomConfig(advantages=f"{FILE}:advantages", loss=f"{FILE}:loss")


def test_functions_that_fit_pass_the_check() -> None:
    check_custom_functions(CUSTOM)
    check_custom_functions(CustomConfig(advantages=f"{FILE}:advantages", rollouts_per_task=1))
    check_custom_functions(CustomConfig(loss="tests.algorithms.custom_grpo.loss"))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"loss": f"{FILE}:wrong_signature"}, r"algorithm\.loss .*signature \(a.*Write f\(micro_batch"),
        (
            {"advantages": f"{FILE}:wrong_signature"},
            r"algorithm\.advantages .*Write f\(batch: RolloutBatch\)",
        ),
        ({"advantages": f"{FILE}:returns_number"}, r"returned a float.*each of the 8 rollouts.*15 tokens"),
        ({"advantages": f"{FILE}:wrong_length"}, r"a tensor of shape \(3,\)"),
        ({"advantages": f"{FILE}:raises"}, r"raised KeyError: 'difficulty' \(.*custom_grpo\.py:\d+\)"),
        ({"loss": f"{FILE}:detached_loss"}, r"loss without a gradient"),
        ({"loss": f"{FILE}:needs_old_logprobs"}, r"raised TypeError"),
        ({"loss": f"{FILE}:los"}, r"algorithm\.loss .*Did you mean 'loss'"),
        ({"loss": "nowhere.py:loss"}, r"there is no file"),
    ],
)
def test_functions_that_do_not_fit_are_refused_at_the_start(functions: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_custom_functions(CustomConfig(**functions))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "needs `advantages`, `loss`, or both"),
        ({"loss": "a.py:f", "entropy_coef": 0.1}, "entropy_coef is an option of the built-in loss"),
        ({"advantages": "a.py:f", "ref_logprobs": True}, "ref_logprobs is read by `loss` only"),
    ],
)
def test_options_that_mean_nothing_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CustomConfig(**values)


def test_advantages_are_those_of_grpo() -> None:
    scored = RolloutBatch(
        rewards=torch.tensor([1.0, 0, 0.5, 2, 0.25]),
        group=torch.tensor([0, 0, 0, 1, 1]),
        tokens=torch.tensor([1, 3, 2, 2, 1]),
    )
    expected = registry.compute_advantages(GrpoConfig(), scored, max_response_tokens=4)
    assert torch.equal(registry.compute_advantages(CUSTOM, scored, max_response_tokens=4), expected)
    only_loss = CustomConfig(loss=f"{FILE}:loss")
    assert torch.equal(registry.compute_advantages(only_loss, scored, max_response_tokens=4), expected)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


def train(engine: LocalEngine | Fsdp2Engine, loss: LossSpec) -> dict[str, torch.Tensor]:
    """The weights after two updates: with the current log-probs as old ones, and with given ones."""
    batch = batch_of()
    engine.forward_backward(batch, loss)
    engine.step()
    old = engine.logprobs(batch.experiences)
    engine.forward_backward(TrainingBatch(batch.experiences, batch.advantages, old_logprobs=old), loss)
    engine.step()
    return {name: weight.clone() for name, weight in engine.iter_weights()}


def test_metrics_of_a_custom_loss_are_recorded_under_custom(folder: Path) -> None:
    metrics = LocalEngine(make_run(folder)).forward_backward(batch_of(), LossSpec(CUSTOM, 64))
    assert metrics.keys() == {"loss", "custom/my_loss"}
    assert all(metric_of(name) for name in metrics)


@pytest.mark.slow
def test_grpo_written_as_custom_trains_the_same_weights(folder: Path) -> None:
    """To the bit, in one process and on two ranks, which load the functions themselves."""
    run = make_run(folder)
    ranked = make_run(folder, trainer={"engine": {"type": "fsdp2", "device": "cpu"}})
    results = [train(LocalEngine(run), LossSpec(config, 64)) for config in (GrpoConfig(), CUSTOM)]
    with closing(RankGroup(2, "cpu")) as group:
        for config in (GrpoConfig(), CUSTOM):
            results.append(train(Fsdp2Engine(group, ranked), LossSpec(config, 64)))
    for built_in, custom in (results[:2], results[2:]):
        assert built_in.keys() == custom.keys()
        assert all(torch.equal(built_in[name], custom[name]) for name in built_in)


def test_a_saved_run_with_every_default_written_out_is_read_again() -> None:
    assert CustomConfig.model_validate(CUSTOM.model_dump()) == CUSTOM
