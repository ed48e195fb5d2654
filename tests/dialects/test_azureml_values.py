"""Every value that the pages of AzureML's components name is read, or refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from strop.dialects.azureml.components import COMPONENTS
from strop.dialects.azureml.reader import read_component
from strop.errors import ConfigError

from .azureml_page import page_copy
from .meaning.test_meaning import NEEDED

DESCRIBED = {
    ("rft_trainer", "actor_model_target_modules"): (
        *("all-linear", "[q_proj,k_proj,v_proj,o_proj]", "[q_proj,v_proj]", ".*_proj"),
    ),
    ("rft_trainer", "rollout_temperature"): ("0.1", "2.0"),
    ("rft_trainer", "rollout_top_p"): ("0.0", "1.0"),
    ("rft_trainer", "rollout_top_k"): ("-1", "0"),
    ("rft_trainer", "pypi_packages_override"): ("transformers==4.30.0,torch==2.3.1",),
    ("verl_trainer", "data_truncation"): ("error", "left", "right", "middle"),
    ("verl_trainer", "actor_kl_loss_type"): ("low_var_kl", "kl", "abs", "mse"),
    ("grpo", "max_steps"): ("-1", "100"),
    ("grpo", "top_p"): ("1.0",),
}
"""Values that the descriptions of inputs name, in addition to enumerations and booleans; for `verl_trainer` also those
that the same inputs of `rft_trainer` enumerate."""
REFUSED = {
    ("rft_trainer", "rollout_do_sample", "false"): "greedy responses .* give no training signal",
    ("rft_trainer", "rollout_top_p", "0.0"): "must be greater than 0",
    ("grpo", "optim", "lomo"): "cannot apply max_grad_norm .* write max_grad_norm 0",
    ("grpo", "optim", "adalomo"): "cannot apply max_grad_norm .* write max_grad_norm 0",
    ("grpo", "lr_scheduler_type", "reduce_lr_on_plateau"): "write eval_strategy steps or epoch",
}
"""Values that are refused when they are the only input given beyond the required ones, with the reason."""
WITH = {
    ("grpo", "optim", "lomo"): {"max_grad_norm": "0"},
    ("grpo", "optim", "adalomo"): {"max_grad_norm": "0"},
    ("grpo", "lr_scheduler_type", "reduce_lr_on_plateau"): {"eval_strategy": "steps"},
}
"""Further inputs, which the reasons ask for; with them, the value is read."""


def named_values(component: str) -> dict[str, tuple[str, ...]]:
    values = {name: DESCRIBED[of, name] for of, name in DESCRIBED if of == component}
    for name, entry in page_copy(component)["inputs"].items():
        if entry["enum"]:
            values[name] = tuple(entry["enum"])
        elif entry["type"] == "boolean":
            values[name] = ("true", "false")
    return values


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("strop.dialects.verl.gpus.count_cuda_devices", lambda: 0)
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")


def configurations(component: str) -> list[dict[str, str]]:
    """Configurations in which each value that is not refused occurs: the n-th sets every input to its n-th value."""
    kept = {
        name: [value for value in values if (component, name, value) not in REFUSED]
        for name, values in named_values(component).items()
    }
    count = max(map(len, kept.values()))
    return [{name: values[n % len(values)] for name, values in kept.items()} for n in range(count)]


def words(component: str, values: Mapping[str, str]) -> list[str]:
    return [*NEEDED[component], *(f"--{name}={value}" for name, value in values.items())]


@pytest.mark.slow
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_named_value_is_read(component: str) -> None:
    for values in configurations(component):
        assert read_component(component, words(component, values), here=True).loaded.run


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED, ids="-".join)
def test_other_values_are_refused_with_the_reason(case: tuple[str, str, str]) -> None:
    component, name, value = case
    assert value in named_values(component)[name]
    with pytest.raises(ConfigError, match=f"(?s){name}.*{REFUSED[case]}"):
        read_component(component, words(component, {name: value}), here=True)
    if case in WITH:
        assert read_component(component, words(component, {name: value, **WITH[case]}), here=True).loaded.run
