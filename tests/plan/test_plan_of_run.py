"""Machines and memory of a run, and the table that `strop check` and `strop explain` print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from strop.cli.main import app
from strop.config.deepspeed import ZeroSettings
from strop.config.machine import GIB, Node, on_machine, parse_machine
from strop.config.schema import Run
from strop.config.schema.model import ModelConfig
from strop.config.units import Amount
from strop.errors import ConfigError, PlacementError
from strop.plan import memory
from strop.plan.memory import ModelSize, read_model_size
from strop.plan.placement import describe_plan, plan_run

from .headers import write_header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    config = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    (model / "config.json").write_text(json.dumps(config))
    weights = {"a": np.zeros((10, 20), np.float16), "b": np.zeros(5, np.float16)}
    save_file(weights, model / "model.safetensors")
    return model


def run(folder: Path, **sections: Any) -> Run:
    data = {"train": {"path": "tasks.jsonl"}}
    return Run.model_validate({"model": {"path": str(folder)}, "data": data, "reward": "exact", **sections})


def test_machines_are_described_in_one_word() -> None:
    machine = parse_machine("2x8xH100-80GB")
    assert machine.nodes == (Node("node-0", 8, 80 * GIB), Node("node-1", 8, 80 * GIB))
    assert machine.gpus == 16 and str(machine) == "2 nodes with 8 H100 each"
    assert parse_machine("4xA10").nodes == (Node("node-0", 4),)
    assert parse_machine("cpu").gpus == 0
    for wrong in ("8", "H100", "0x8xH100-80GB", "8xH100-80", "8 x H100"):
        with pytest.raises(ConfigError, match="is not a description of a machine"):
            parse_machine(wrong)


ON_RAY = {"type": "ray", "nodes": 2, "gpus_per_node": 8}
OF_TWO = "(of 2; `cluster: {type: ray, nodes: 2, gpus_per_node: 8}` uses all):"


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ("local", f"Placement on 1 node with 8 H100 {OF_TWO}"),
        (ON_RAY | {"nodes": 1}, "Placement on 1 node with 8 H100 (of 2 described; cluster.nodes is 1)"),
        (ON_RAY, "Placement on 2 nodes with 8 H100 each"),
    ],
)
def test_the_plan_says_which_described_nodes_it_leaves_out(folder: Path, cluster: Any, sentence: str) -> None:
    with on_machine(parse_machine("2x8xH100-80GB")):
        assert describe_plan(plan_run(run(folder, cluster=cluster))).startswith(sentence)


def test_the_size_of_a_model_is_read_from_its_folder(folder: Path) -> None:
    size = read_model_size(str(folder))
    assert size == ModelSize(parameters=205, layers=2, hidden=96, heads=6, kv_heads=2, head_dim=16)
    assert size.kv_values_per_token == 2 * 2 * 2 * 16
    assert read_model_size("Qwen/Qwen2.5-7B") is None


def test_a_relative_path_is_that_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change while a process such as Studio runs."""
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert read_model_size("./m") is None
        sizes = {"num_hidden_layers": number, "hidden_size": 16, "num_attention_heads": 2}
        write_header(Path("m"), [300, 16], **sizes)
        size = read_model_size("./m")
        assert size is not None
        found.append((size.layers, size.parameters))
    assert found == [(1, 4800), (2, 4800)]


def test_memory_of_a_seven_billion_model_by_hand() -> None:
    """Qwen2.5-7B: 28 layers, 3584 wide, 4 KV heads of 128; float32 parameters, bfloat16 products, AdamW, 8 ranks."""
    size = ModelSize(7_600_000_000, 28, 3584, 28, 4, 128, intermediate=18944)
    model = ModelConfig(path="m", compute_dtype="bfloat16", gradient_checkpointing=True)
    need = memory.trained_model(size, model, "adamw", memory.RankLayout(8), Amount(16384, "tokens"), 4096)
    assert need.resident == 7_600_000_000 * (4 + 2 + 8) // 8  # weights, copy, two moments
    of_layer = 4 * 3584 + 4 * 3584 + 2 * 512 + 3 * 18944  # norms, attention, KV, MLP
    gradients = 3 * 18944 + 2 * 3584  # of a layer's MLP
    values = 28 * 3584 + of_layer - 3584 + gradients  # inputs of the layers, and one that is computed again
    assert need.working == 7_600_000_000 * 4 // 8 + 16384 * values * 2
    selective = model.model_copy(update={"gradient_checkpointing": "selective"})
    more = memory.trained_model(size, selective, "adamw", memory.RankLayout(8), Amount(16384, "tokens"), 4096)
    products = 27 * (2 * 3584 + 2 * 3584 + 2 * 512 + 2 * 18944)  # outputs of the products, and of attention
    products += 2 * 3584  # in the layer that is computed again only those of two products are further values
    assert more.working == need.working + 16384 * products * 2
    engine = memory.engine(size, "bfloat16", 2, 4096)
    assert engine.resident == 7_600_000_000
    assert engine.working == 2 * 28 * 4 * 128 * 4096 * 2 // 2


@pytest.mark.parametrize(
    ("stage", "offload", "resident", "gradients"),
    [
        # Per parameter: 2 bytes of parameters, 2 of gradients, 12 of the master and two moments (8 ranks).
        (1, False, 2 + 12 / 8, 2),
        (2, False, 2 + 12 / 8, 2 / 8),
        (3, False, 2 / 8 + 12 / 8, 2 / 8),
        (3, True, 0, 2 / 8),
    ],
)
def test_memory_of_zero_stages_by_hand(stage: int, offload: bool, resident: float, gradients: float) -> None:
    """Figure 1 of arXiv 1910.02054."""
    size, model = ModelSize(8_000_000_000, 0, 0, 1, 1, 1), ModelConfig(path="m", compute_dtype="bfloat16")
    zero = ZeroSettings(stage, offload, offload)
    need = memory.zero_model(size, model, "adamw", 8, zero, Amount(16384, "tokens"), 4096)
    assert (need.resident, need.working) == (size.parameters * resident, size.parameters * gradients)


@pytest.mark.parametrize(("family", "contents"), [("qwen2", "vLLM"), ("qwen2_5_vl", "sampler")])
def test_auto_plans_the_native_sampler_for_a_model_that_takes_images(
    folder: Path, family: str, contents: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": family}))
    with on_machine(parse_machine("2xH100-80GB")):
        plan = plan_run(run(folder, rollout={"engine": "auto"}))
    assert contents in [content for placed in plan.processes for content in placed.process.contents]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("rollout", {"engine": {"type": "vllm", "tensor_parallel": 4}}, r"one of 1, 2, 3, 6\."),
        ("cluster", ON_RAY, "requires 2 nodes with 8"),
    ],
)
def test_what_the_machine_or_the_model_does_not_allow(
    folder: Path, section: str, values: Any, message: str
) -> None:
    with on_machine(parse_machine("8xH100-80GB")), pytest.raises(PlacementError, match=message):
        plan_run(run(folder, **{section: values}))


def test_contents_of_the_processes(folder: Path) -> None:
    asked = run(
        folder,
        algorithm={"type": "ppo", "kl_loss": {}},
        rollout={"auxiliary_models": [{"name": "helper", "path": str(folder)}]},
        reward={"models": [{"name": "score", "path": str(folder)}]},
    )
    with on_machine(parse_machine("1xH100-80GB")):
        (trainer,) = plan_run(asked).processes
    expected = ("policy", "critic", "reference", "auxiliary model helper", "reward model score", "sampler")
    assert trainer.process.contents == expected and trainer.gpus == (0,)


def test_explain_prints_the_plan(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    engines = {"trainer": {"engine": {"type": "fsdp2", "ranks": 2}}}
    engines |= {"rollout": {"engine": {"type": "vllm", "tensor_parallel": 2}}}
    asked = {"model": {"path": str(folder)}, "data": {"train": {"path": "t.jsonl"}}, "reward": "exact"}
    file.write_text(json.dumps(asked | engines))
    shown = CliRunner().invoke(app, ["explain", str(file), "--machine", "4xH100-80GB"]).output
    assert "Placement on 1 node with 4 H100, with GPUs of their own for training and sampling:" in shown
    assert "node-0  2, 3  engine 0        vLLM, tensor parallel 2  72.0 of 80 GiB (90 %)" in shown
    refused = CliRunner().invoke(app, ["explain", str(file), "--machine", "1xH100-80GB"]).output
    assert "No placement: The trainer needs 2 GPUs" in refused
