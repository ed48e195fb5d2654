"""Twenty configurations of each tool mean what the tool's own code makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from strop.compat.azureml.reader import read_component
from strop.compat.hydra import ConfigSelection
from strop.compat.trinity.reader import read_trinity
from strop.compat.trl.reader import find_program, read_trl_arguments
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.schema import Run

from .cases import Case, differences, parameters, read_cases

NEEDED = {
    "rft_trainer": ("--data_train_files=t.jsonl", "--data_val_files=v.jsonl", "--actor_model_path=m"),
    "verl_trainer": ("--data_train_files=t.jsonl", "--data_val_files=v.jsonl", "--actor_model_path=m"),
    "grpo": (
        *("--dataset_train_split=t.jsonl", "--dataset_validation_split=v.jsonl", "--model_name_or_path=m"),
        "--deepspeed_config=ds.json",
    ),
}
TABLES = ("verl", "trinity", "trl", "rft_trainer", "verl_trainer", "grpo")


@parameters("verl")
def test_verl(case: Case) -> None:
    program, *words = case.config
    read = read_verl_sft if program == "sft" else read_verl
    selection = ConfigSelection(name="ppo_megatron_trainer") if program == "ppo megatron" else None
    assert differences(case, read(words, selection=selection, here=True).run) == {}


@parameters("trinity")
def test_trinity(case: Case) -> None:
    Path("t.yaml").write_text(yaml.safe_dump(case.config), encoding="utf-8")
    assert differences(case, read_trinity(Path("t.yaml"), (), here=True).run) == {}


@parameters("trl")
def test_trl(case: Case) -> None:
    program, *words = case.config
    arguments = ("--model_name_or_path=m", "--dataset_name=t.jsonl", *words)
    assert differences(case, read_trl_arguments(find_program(program), arguments, here=True).run) == {}


def read_inputs(component: str, case: Case) -> Run:
    inputs = [f"--{name}={value}" for name, value in case.config.items()]
    return read_component(component, [*NEEDED[component], *inputs], here=True).loaded.run


@parameters("rft_trainer")
def test_rft_trainer(case: Case) -> None:
    assert differences(case, read_inputs("rft_trainer", case)) == {}


@parameters("verl_trainer")
def test_verl_trainer(case: Case) -> None:
    assert differences(case, read_inputs("verl_trainer", case)) == {}


@parameters("grpo")
def test_grpo(case: Case) -> None:
    assert differences(case, read_inputs("grpo", case)) == {}


@pytest.mark.parametrize("table", TABLES)
def test_twenty_different_configurations(table: str) -> None:
    cases = read_cases(table)
    assert len({str(case.config) for case in cases}) == len(cases) >= 20
