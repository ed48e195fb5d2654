"""A user's own advantage and loss functions: checks at the start, and GRPO written as custom functions."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from strop.algorithms.custom import Custom
from strop.algorithms.registry import LossSpec, compute_advantages
from strop.config.schema.algorithm import CustomConfig, GrpoConfig
from strop.errors import ConfigError
from strop.runs.metrics import metric_of
from strop.types import TokenOutputs
from tests.algorithms.batches import counts_of, make_batch, make_rollouts
from tests.algorithms.objectives import model_outputs

FILE = Path(__file__).with_name("custom_grpo.py")
CUSTOM = CustomConfig(advantages=f"{FILE}:advantages", loss=f"{FILE}:loss")
IMPORTS = "import torch\nfrom strop.types import LossOutput\n"


def test_functions_that_fit_pass_the_check(tmp_path: Path) -> None:
    Custom(CUSTOM).check()
    Custom(CustomConfig(advantages=f"{FILE}:advantages", rollouts_per_task=1)).check()
    Custom(CustomConfig(loss="tests.algorithms.custom_grpo.loss")).check()
    only_targets = "def f(batch, outputs, _):\n    assert not batch.advantages[~batch.loss_mask].any()\n"
    file = tmp_path / "user.py"
    file.write_text(IMPORTS + only_targets + "    return LossOutput(outputs.logprobs.sum(), {})")
    Custom(CustomConfig(loss=f"{file}:f")).check()
    file.write_text("def f(changed): ...")
    with pytest.raises(ConfigError, match="which does not fit"):
        Custom(CustomConfig(loss=f"{file}:f")).check()


LOSS = "def f(micro_batch, outputs, counts): return "


@pytest.mark.parametrize(
    ("key", "source", "message"),
    [
        ("loss", "def f(a, b, c, d): ...", r"algorithm\.loss .*signature \(a.*Write f\(micro_batch"),
        ("advantages", "def f(a, b, c, d): ...", r"algorithm\.advantages .*Write f\(batch: RolloutBatch\)"),
        ("advantages", "def f(batch): return 1.0", r"returned a float.*each of the 8 rollouts.*15 tokens"),
        ("advantages", "def f(batch): return torch.zeros(3)", r"a tensor of shape \(3,\)"),
        ("advantages", "def f(batch): return batch.rewards / 0", "returned values that are NaN or infinite"),
        (
            "advantages",
            "def f(batch): raise KeyError('difficulty')",
            r"raised KeyError: 'difficulty' \(.*user\.py:3\)",
        ),
        ("loss", LOSS + "LossOutput(outputs.logprobs.detach().sum(), {})", "loss without a gradient"),
        # In a step's first update, old log-probs are None.
        (
            "loss",
            LOSS + "LossOutput((outputs.logprobs - micro_batch.old_logprobs).sum(), {})",
            "raised TypeError",
        ),
        ("loss", LOSS + "outputs.logprobs.sum()", r"returned a Tensor\. Return strop\.types\.LossOutput"),
        ("loss", LOSS + "LossOutput(outputs.logprobs, {})", "loss must be a tensor with a single number"),
        (
            "loss",
            LOSS + "LossOutput(outputs.logprobs.sum(), {'a': 1.0})",
            "metrics must map names to tensors",
        ),
        ("loss", LOSS + "LossOutput(outputs.logprobs.sum() / 0, {})", "NaN or infinite for a small example"),
    ],
)
def test_functions_that_do_not_fit_are_refused_at_the_start(key, source, message, tmp_path):
    (tmp_path / "user.py").write_text(IMPORTS + source)
    with pytest.raises(ConfigError, match=message):
        Custom(CustomConfig(**{key: f"{tmp_path / 'user.py'}:f"})).check()


@pytest.mark.parametrize(
    ("name", "message"),
    [(f"{FILE}:los", r"algorithm\.loss .*Did you mean 'loss'"), ("nowhere.py:loss", "there is no file")],
)
def test_a_function_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Custom(CustomConfig(loss=name)).check()


def test_advantages_are_those_of_grpo() -> None:
    for seed in range(10):
        scored = make_rollouts(seed)
        expected = compute_advantages(GrpoConfig(), scored, max_response_tokens=4).advantages
        found = compute_advantages(CUSTOM, scored, max_response_tokens=4).advantages
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("on_policy", [True, False])
def test_grpo_written_as_custom_has_the_same_loss_and_gradient(on_policy: bool) -> None:
    """To the bit; the loss is a specification that is sent to other processes, which load the functions."""
    batch = make_batch([(1, 4), (2, 3)], on_policy=on_policy)
    batch.weight.fill_(1)
    parameters, outputs = model_outputs(batch)
    results = []
    for config in (GrpoConfig(), CUSTOM):
        loss = pickle.loads(pickle.dumps(LossSpec(config, 64))).build()
        results.append(loss(batch, TokenOutputs(outputs.logprobs), counts_of(batch)))
    gradients = [torch.autograd.grad(each.loss, parameters, retain_graph=True)[0] for each in results]
    assert torch.equal(results[0].loss, results[1].loss) and torch.equal(*gradients)
    assert results[1].metrics.keys() == {"custom/my_loss"}
    assert metric_of("custom/my_loss")


def test_a_saved_run_with_every_default_written_out_is_read_again() -> None:
    assert CustomConfig.model_validate(CUSTOM.model_dump()) == CUSTOM
