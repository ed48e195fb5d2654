"""Optimizers: formulas, exact resuming, and refused settings."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from transformers import Trainer

from strop.config.schema import Run
from strop.config.schema.model import LoraConfig
from strop.config.schema.optimizer import OptimizerConfig
from strop.config.schema.trainer import TrainerConfig
from strop.errors import CheckpointError, MissingExtraError, PlacementError, TrainingError
from strop.models.lora import add_lora
from strop.training.optimizers import FusedBackward, build_optimizer, undecayed_parameters
from strop.training.trained_models import PolicyModel
from tests.models.models import make
from tests.training.test_local_engine import accumulate, make_policy, make_run, micro_batches, same, weights

pytest.importorskip("pytorch_optimizer", reason="comes with strop[optimizers]")
SLOW = {"lr": 0.01, "weight_decay": 0.1}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"type": "adamw", "fused": False},
    "adamw_torch_fused": {"type": "adamw"},
    "adafactor": {"type": "adafactor", "beta1": 0.9, "scale_parameter": True},
    "ademamix": {"type": "ademamix", "ramp_updates": 4},
    "sgd": {"type": "sgd", "momentum": 0.9, "nesterov": True, "decay_norms_and_biases": False},
    "adagrad": {"type": "adagrad", "lr_decay": 0.1, "initial_accumulator": 0.1},
    "rmsprop": {"type": "rmsprop", "momentum": 0.9, "centered": True},
    "galore_adamw": {"type": "galore_adamw", "rank": 4, "update_every": 4, "scale": 1.0},
    "lomo": {"type": "lomo"},
    "adalomo": {"type": "adalomo"},
    "grokadamw": {"type": "grokadamw"},
    "schedule_free_sgd": {"type": "schedule_free_sgd"},
}
"""The names of the GRPO component's page."""
if find_spec("bitsandbytes"):  # not among the development packages: peft imports it, which takes a second
    OPTIMIZERS["adamw_bnb_8bit"] = {"type": "adamw_bnb"}
MODELS: dict[str, dict[str, object]] = {
    "float32": {},
    "mixed": {"compute_dtype": "bfloat16"},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed lora": {"compute_dtype": "bfloat16", "lora": {"rank": 4}},
}


def run_with(folder: Path, name: str, model: Mapping[str, object] = {}) -> Run:
    clip = None if name in ("lomo", "adalomo") else 1.0
    trainer = {"optimizer": {**SLOW, **OPTIMIZERS[name]}, "max_grad_norm": clip, "engine": {"device": "cpu"}}
    return make_run(folder, model, trainer=trainer)


def update(engine: PolicyModel, number: int) -> tuple[dict[str, float], float]:
    """One update of one micro-batch, at a learning rate that depends on its number."""
    engine.set_lr(0.01 / (number + 1))
    return accumulate(engine, micro_batches(engine, 10_000, seed=number)), engine.step()


def resumed_cases() -> Iterator[Any]:
    """Each optimizer with one kind of model in CI, and with the others at night."""
    for number, (optimizer, model) in enumerate(product(OPTIMIZERS, MODELS)):
        in_ci = number % len(MODELS) == (number // len(MODELS)) % len(MODELS)
        yield pytest.param(
            optimizer, MODELS[model], marks=() if in_ci else pytest.mark.nightly, id=f"{optimizer}, {model}"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), list(resumed_cases()))
def test_a_resumed_optimizer_equals_the_uninterrupted_one_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, model: dict[str, object]
) -> None:
    engine = make_policy(run_with(folder, name, model))
    start = weights(engine)
    for number in range(3):
        _, norm = update(engine, number)
        assert norm > 0
    assert not same(weights(engine), start)
    before = weights(engine)
    engine.snapshot().begin_write(tmp_path)()
    assert same(weights(engine), before)
    expected = [update(engine, number) for number in range(3, 6)]
    resumed = make_policy(run_with(folder, name, model))
    resumed.load(tmp_path)
    assert same(weights(resumed), before)
    assert [update(resumed, number) for number in range(3, 6)] == expected
    assert same(weights(resumed), weights(engine))
    assert [list(each) for each in resumed.snapshot().tensors.values()] == [
        list(each) for each in engine.snapshot().tensors.values()
    ]
    assert resumed.snapshot().texts == engine.snapshot().texts
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_lowers_the_loss(folder: Path, name: str) -> None:
    engine = make_policy(run_with(folder, name))
    losses = []
    for _ in range(4):
        losses.append(accumulate(engine, micro_batches(engine, 10_000))["loss"])
        engine.step()
    assert losses[-1] < losses[0]


def sample_parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(3)
    shapes = {"embed.weight": (9, 6), "layers.0.q.weight": (6, 8), "layers.0.norm.weight": (6,)}
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def gradients(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(p.shape, generator=generator) for p in sample_parameters().values()]


def descend(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], updates: int
) -> list[Tensor]:
    parameters = list(parameters)
    for number in range(updates):
        for parameter, gradient in zip(parameters, gradients(number), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def ours(name: str, updates: int = 5, **options: object) -> list[Tensor]:
    section = TypeAdapter(OptimizerConfig).validate_python({**SLOW, **OPTIMIZERS[name], **options})
    parameters = sample_parameters()
    return descend(build_optimizer(section, parameters), parameters.values(), updates)


def close(one: list[Tensor], other: list[Tensor]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-7)


def test_moments_of_8_bits_are_near_adamw() -> None:
    """bitsandbytes keeps 32 bits for tensors of fewer than 4,096 numbers, and 8 for larger ones."""
    pytest.importorskip("bitsandbytes", reason="comes with strop[bitsandbytes]")
    torch.manual_seed(0)
    start = torch.randn(128, 64)
    found = []
    for section in ({"type": "adamw_bnb", **SLOW}, {"type": "adamw", **SLOW}):
        parameter = nn.Parameter(start.clone())
        optimizer = build_optimizer(TypeAdapter(OptimizerConfig).validate_python(section), {"w": parameter})
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            parameter.grad = torch.randn(start.shape, generator=generator)
            optimizer.step()
        found.append((parameter.detach(), optimizer.state[parameter]))
    (quantized, state), (exact, _) = found
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    assert 0 < (quantized - exact).norm() < 0.05 * (exact - start).norm()


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "phi", "cohere", "mamba", "qwen3"])
def test_norms_and_biases_are_those_of_transformers_trainer(family: str) -> None:
    options = {"use_qk_norm": True} if family == "cohere" else {}
    for model in (
        make(family, **options),
        add_lora(make(family, **options), LoraConfig(rank=2), torch.float32),
    ):
        decayed = Trainer.get_decay_parameter_names(None, model)  # type: ignore[arg-type]
        assert undecayed_parameters(model) == {name for name, _ in model.named_parameters()} - set(decayed)


# The rate of GrokAdamW depends on a tensor's place in a group.
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "grokadamw"])
def test_the_decay_leaves_out_norms_and_biases(name: str) -> None:
    section = TypeAdapter(OptimizerConfig).validate_python({**SLOW, **OPTIMIZERS[name], "weight_decay": 0.5})
    parameters = sample_parameters()
    optimizer = build_optimizer(section, parameters, {"layers.0.norm.weight"})
    *others, norm = descend(optimizer, parameters.values(), 3)
    *decayed, decayed_norm = ours(name, 3, weight_decay=0.5)
    close(others, decayed)
    close([norm], ours(name, 3, weight_decay=0.0)[-1:])
    assert not torch.equal(norm, decayed_norm)


def test_a_changing_decay_leaves_out_norms_and_biases(folder: Path) -> None:
    model = make_policy(run_with(folder, "sgd"))
    model.set_weight_decay(0.3)
    names = {p: name for name, p in model._parameters.items()}
    found = {
        names[p]: group["weight_decay"] for group in model._optimizer.param_groups for p in group["params"]
    }
    assert found.keys() == model._parameters.keys()
    assert {name for name, decay in found.items() if decay == 0} == undecayed_parameters(model.master)
    assert {0.0, 0.3} == set(found.values())


def test_paged_moments_need_a_gpu() -> None:
    section = TypeAdapter(OptimizerConfig).validate_python({"type": "adamw_bnb", "paged": True})
    with pytest.raises(PlacementError, match="Write paged: false"):
        build_optimizer(section, sample_parameters())


def test_ademamix_matches_the_paper() -> None:
    """m1, m2, v, and w -= lr ((m1 / (1 - b1^t) + alpha m2) / (sqrt(v / (1 - b2^t)) + eps) + decay w)."""
    weights = [p.detach().clone() for p in sample_parameters().values()]
    fast, slow, squares = ([torch.zeros_like(w) for w in weights] for _ in range(3))
    for number in range(5):
        t = number + 1
        for w, m1, m2, v, g in zip(weights, fast, slow, squares, gradients(number), strict=True):
            m1.mul_(0.9).add_(g, alpha=0.1)
            m2.mul_(0.9999).add_(g, alpha=0.0001)
            v.mul_(0.999).add_(g * g, alpha=0.001)
            root = (v / (1 - 0.999**t)).sqrt() + 1e-8
            w -= 0.01 * ((m1 / (1 - 0.9**t) + 5 * m2) / root + 0.1 * w)
    close(ours("ademamix", ramp_updates=None), weights)


def test_galore_of_full_rank_is_adam_in_rotated_axes() -> None:
    """At full rank the projection is a rotation R: w -= lr Adam(g R') R, and AdamW for all but matrices."""
    found = ours("galore_adamw", updates=1, rank=6, weight_decay=0.0)
    start = list(sample_parameters().values())
    gradient = gradients(0)
    u, _, _ = torch.linalg.svd(gradient[1], full_matrices=False)
    turned = u.T @ gradient[1]
    expected = start[1].detach() - 0.01 * u @ (turned / (turned.abs() + 1e-8 / 0.001**0.5))
    torch.testing.assert_close(found[1], expected, rtol=1e-5, atol=1e-6)
    plain = descend(torch.optim.AdamW(start, lr=0.01, weight_decay=0), start, 1)
    torch.testing.assert_close(found[0], plain[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[2], plain[2], rtol=1e-5, atol=1e-6)


def test_galore_updates_layer_matrices_with_low_rank() -> None:
    moved = ours("galore_adamw", updates=1, rank=2, weight_decay=0.0)
    start = [p.detach() for p in sample_parameters().values()]
    assert torch.linalg.matrix_rank(moved[1] - start[1], atol=1e-5) == 2
    assert torch.linalg.matrix_rank(moved[0] - start[0], atol=1e-5) == 6


def test_schedule_free_matches_the_paper() -> None:
    """z -= lr g(y); x = (1 - c) x + c z with c = 1 / t; y = (1 - beta) z + beta x; x is what is shown."""
    section = TypeAdapter(OptimizerConfig).validate_python({"type": "schedule_free_sgd", "lr": 0.1})
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = build_optimizer(section, {"w": parameter})
    z = x = y = parameter.detach().clone()
    for t in range(1, 6):
        torch.testing.assert_close(parameter.detach(), y)
        parameter.grad = parameter.detach().clone()
        optimizer.step()
        z = z - 0.1 * y
        x = x + (z - x) / t
        y = 0.1 * z + 0.9 * x
    optimizer.eval()
    torch.testing.assert_close(parameter.detach(), x)


def test_grokadamw_by_hand() -> None:
    """One weight, first update, gradient 0.5: slow = 0.01, boosted = 0.52, and the moments' biases cancel."""
    parameter = nn.Parameter(torch.tensor([2.0]))
    section = TypeAdapter(OptimizerConfig).validate_python(
        {"type": "grokadamw", "lr": 0.1, "weight_decay": 0.5}
    )
    optimizer = build_optimizer(section, {"w": parameter})
    parameter.grad = torch.tensor([0.5])
    optimizer.step()
    assert optimizer.state[parameter]["slow"].item() == pytest.approx(0.01)
    assert optimizer.state[parameter]["exp_avg"].item() == pytest.approx(0.052)
    assert parameter.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) - 0.1)


def test_grokadamw_matches_the_package() -> None:
    package = pytest.importorskip("grokadamw")
    parameters = list(sample_parameters().values())
    theirs = package.GrokAdamW(parameters, lr=0.01, weight_decay=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = descend(theirs, parameters, 5)
    close(ours("grokadamw"), expected)


@pytest.mark.parametrize("name", ["lomo", "adalomo"])
def test_fused_backward_matches_the_library(folder: Path, name: str) -> None:
    """The same updates of a small network by pytorch_optimizer's class, which hooks into backward itself."""
    library = pytest.importorskip("pytorch_optimizer")
    kinds = {"lomo": library.LOMO, "adalomo": library.AdaLOMO}

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    mine, theirs = network(), network()
    section = TypeAdapter(OptimizerConfig).validate_python({"type": name, "lr": 0.05})
    parameters = dict(mine.named_parameters())
    fused = FusedBackward(build_optimizer(section, parameters), parameters, parameters)
    optimizer = kinds[name](theirs, lr=0.05)
    for _ in range(4):
        mine(inputs).square().sum().backward()
        loss = theirs(inputs).square().sum()
        expected = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, theirs.parameters(), retain_graph=True)]
        )
        optimizer.fused_backward(loss, 0.05)
        torch.testing.assert_close(fused.pop_grad_norm(), expected.norm())
        assert all(p.grad is None for p in parameters.values())
    close([p.detach() for p in mine.parameters()], [p.detach() for p in theirs.parameters()])


def test_lomo_equals_sgd(folder: Path) -> None:
    """The engine's fused update against the plain one, on the same batch."""
    engines = [make_policy(run_with(folder, name)) for name in ("lomo", "sgd")]
    plain = {"optimizer": {**SLOW, "type": "sgd"}, "max_grad_norm": None, "engine": {"device": "cpu"}}
    engines[1] = make_policy(make_run(folder, trainer=plain))
    for number in range(3):
        (one, norm), (other, other_norm) = (update(engine, number) for engine in engines)
        assert one == pytest.approx(other)
        assert norm == pytest.approx(other_norm, rel=1e-5)
    close(list(weights(engines[0]).values()), list(weights(engines[1]).values()))


def test_a_model_that_updates_during_its_backward_pass_is_freed(folder: Path) -> None:
    """Hooks of its parameters call the optimizer, which has the parameters."""
    engine = make_policy(run_with(folder, "lomo"))
    update(engine, 0)
    weight = weakref.ref(next(engine.model.parameters()))
    del engine
    gc.collect()
    assert weight() is None


def test_fused_backward_refuses_a_partial_update_before_any_change(folder: Path) -> None:
    engine = make_policy(run_with(folder, "lomo"))
    before = weights(engine)
    with pytest.raises(TrainingError, match="must be one micro-batch"):
        accumulate(engine, micro_batches(engine, 30))
    assert same(weights(engine), before)


@pytest.mark.parametrize("model", [MODELS["float32"], MODELS["mixed"]], ids=["float32", "mixed"])
def test_schedule_free_publishes_its_average(folder: Path, model: dict[str, object]) -> None:
    """After an update weights and log-probs are the average's; gradients are taken at another point."""
    engine = make_policy(run_with(folder, "schedule_free_sgd", model))
    for number in range(3):
        update(engine, number)
    shown = weights(engine)
    batch = micro_batches(engine, 10_000)
    logprobs = engine.token_values(batch[:1], "logprobs")[0]
    accumulate(engine, batch)
    assert not same(weights(engine), shown), "gradients are taken at the point ahead of the average"
    engine.step()
    engine = make_policy(run_with(folder, "schedule_free_sgd", model))
    for number in range(3):
        update(engine, number)
    assert same(weights(engine), shown)
    assert torch.equal(engine.token_values(batch[:1], "logprobs")[0], logprobs)


def test_the_state_of_another_optimizer_is_refused(folder: Path, tmp_path: Path) -> None:
    engine = make_policy(run_with(folder, "sgd"))
    update(engine, 0)
    engine.snapshot().begin_write(tmp_path)()
    with pytest.raises(CheckpointError, match="state of SGD, but this run's optimizer is Adagrad"):
        make_policy(run_with(folder, "adagrad")).load(tmp_path)


def test_settings_come_from_the_run_file_and_not_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    engine = make_policy(run_with(folder, "ademamix"))
    update(engine, 0)
    engine.snapshot().begin_write(tmp_path)()
    run = run_with(folder, "ademamix")
    changed = run.trainer.optimizer.model_copy(update={"alpha": 2.0, "weight_decay": 0.3})
    other = make_policy(
        run.model_copy(update={"trainer": run.trainer.model_copy(update={"optimizer": changed})})
    )
    other.load(tmp_path)
    (group,) = other._optimizer.param_groups
    assert (group["alpha"], group["weight_decay"], group["step"]) == (2.0, 0.3, 1)


def test_a_missing_library_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'strop\[optimizers\]'"):
        ours("galore_adamw")


CLIPPED = "{} updates the weights during the backward pass.*max_grad_norm: null"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("lomo", CLIPPED.format("lomo")),
        ("adalomo", CLIPPED.format("adalomo")),
        ({"type": "adamw_bnb", "bits": 32}, "write type: adamw, or bits: 8"),
        ({"type": "sgd", "nesterov": True}, "nesterov requires a momentum above 0"),
    ],
    ids=["lomo with clipping", "adalomo with clipping", "32 bits unless paged", "nesterov without momentum"],
)
def test_settings_that_do_not_fit_are_refused(section: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig.model_validate({"optimizer": section})
