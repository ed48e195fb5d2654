"""Memory by purpose, and the changes that make a run fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from strop.cli.main import app
from strop.config.machine import GIB, on_machine, parse_machine
from strop.config.schema import Run
from strop.config.schema.model import ModelConfig
from strop.config.schema.trainer import Fsdp2EngineConfig
from strop.config.units import Amount
from strop.plan import memory
from strop.plan.fit import fits, memory_fit, memory_rows, needed_memory, propose, step_lines
from strop.plan.memory import ModelSize
from strop.workers import memory as host_memory
from strop.workers.memory import total_memory_bytes

from .headers import write_header

PARAMETERS = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 2^30 parameters, of which only the header is there."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 32768}
    return write_header(tmp_path, [PARAMETERS], **sizes)


def run(folder: Path, **sections: Any) -> Run:
    values = {"model": {"path": str(folder)}, "data": {"train": {"path": "o/d"}}, "reward": "exact"}
    return Run.model_validate(values | sections)


def trained(layout: memory.RankLayout, **model: Any) -> memory.MemoryNeed:
    """Memory of a trained model of 16 layers, 2048 wide, for micro-batches of 1024 tokens."""
    size = ModelSize(PARAMETERS, 16, 2048, 16, 16, 128, 32768)
    config = ModelConfig.model_validate({"path": "m", **model})
    return memory.trained_model(size, config, "adamw", layout, Amount(1024, "tokens"), 512)


def parts_of(need: memory.MemoryNeed) -> dict[str, int]:
    return {part.name: part.bytes for part in need.parts}


def test_the_parts_of_a_trained_model() -> None:
    need = trained(memory.RankLayout(2))
    parts = parts_of(need)
    assert parts["parameters"] == parts["gradients"] == 2 * GIB and parts["optimizer"] == 4 * GIB
    assert parts["activations"] == 1024 * 16 * (4 + 6 + 12) * 2048 * 4  # norms, attention, MLP of 4 x 2048
    assert parts["logits"] == 256 * 32768 * 3 * 4 + 2 * 32768 * 2048 * 4
    assert need.needed == sum(parts.values())


def test_frozen_weights_exist_once_and_in_the_compute_dtype() -> None:
    parts = parts_of(trained(memory.RankLayout(), compute_dtype="bfloat16", lora={"rank": 8}))
    adapter = 16 * 8 * (4 * 2 * 2048 + 3 * 5 * 2048)
    assert parts["parameters"] == PARAMETERS * 2 + adapter * (4 + 2)
    assert parts["optimizer"] == adapter * 8


@pytest.mark.parametrize(
    ("quantization", "bytes_per_value"),
    [({}, 0.5 + 4 / 64), ({"double": True, "block_size": 128}, 0.5 + 1 / 128), ({"bits": 8}, 1)],
)
def test_quantized_weights_are_counted_with_their_scales(
    quantization: dict[str, Any], bytes_per_value: float
) -> None:
    """Weights outside linear layers keep the compute dtype."""
    size = ModelSize(2 * PARAMETERS, 16, 2048, 16, 16, 128, 32768)
    model = ModelConfig.model_validate({"path": "m", "lora": {"rank": 8}, "quantization": quantization})
    need = memory.trained_model(size, model, "adamw", memory.RankLayout(), Amount(1024, "tokens"), 512)
    adapter = 16 * 8 * (4 * 2 * 2048 + 3 * 5 * 2048)
    in_layers = 16 * 2048 * (2 * 32 * 128 + 3 * 4 * 2048)
    expected = in_layers * bytes_per_value + (2 * PARAMETERS - in_layers) * 4 + adapter * 4
    assert parts_of(need)["parameters"] == pytest.approx(expected)
    assert need.loading == pytest.approx(2 * PARAMETERS * 4 - (expected - adapter * 4))
    assert memory.with_libraries(need).working == need.loading > need.working


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_bitsandbytes_has_quantized_are_counted_as_they_are_stored(
    tmp_path: Path, bits: int
) -> None:
    """A matrix of 8 x 16, one of 16 x 8 and one of 5 x 16 that is not quantized, as bitsandbytes names their parts."""
    kinds = {
        4: {"weight": torch.uint8, "weight.absmax": torch.float32, "weight.quant_map": torch.float32},
        8: {"weight": torch.int8, "SCB": torch.float32, "weight_format": torch.uint8},
    }[bits]
    sizes = {
        "weight": 64 if bits == 4 else 128,
        "weight.absmax": 2,
        "weight.quant_map": 16,
        "SCB": 8,
        "weight_format": 0,
    }
    tensors = {
        f"{name}.{part}": torch.zeros(sizes[part], dtype=kind)
        for name in "ab"
        for part, kind in kinds.items()
    }
    tensors["c.weight"] = torch.zeros((5, 16), dtype=torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}})
    )
    size = memory.read_model_size(str(tmp_path))
    assert size is not None and size.parameters == 2 * 128 + 80
    assert size.quantized_bytes == sum(each.nbytes for each in tensors.values())
    model = ModelConfig.model_validate({"path": str(tmp_path), "lora": {"rank": 1}})
    assert memory._frozen_bytes(size, model, 2) == size.quantized_bytes


def test_the_layout_of_the_ranks_divides_the_parts() -> None:
    values = {"ranks": 8, "replicate": 2, "sequence_parallel": 2, "tensor_parallel": 2}

    def parts(**changes: object) -> dict[str, int]:
        engine = Fsdp2EngineConfig.model_validate(values | changes)
        return parts_of(trained(memory.RankLayout.of(engine)))

    found = parts()
    assert found["parameters"] == found["gradients"] == GIB and found["optimizer"] == 2 * GIB
    assert found["activations"] == 512 * 16 * (4 + (6 + 12) // 2) * 2048 * 4
    assert parts(gradient_sync="last_microbatch")["gradients"] == 2 * GIB
    offloaded = parts(cpu_offload=True)
    assert [offloaded[name] for name in ("parameters", "optimizer", "gradients")] == [0, 0, 0]


def test_a_sampler_in_the_trainers_process_has_no_weights_of_its_own(folder: Path) -> None:
    header, trainer = memory_rows(run(folder), parse_machine("1xA10-24GB"))
    row = dict(zip(header, trainer, strict=True))
    assert row["parameters"] == row["gradients"] == "4.00" and row["optimizer"] == "8.00"
    assert row["KV cache"] == "32.0"  # 2 x 16 layers x 2048 values x 131,072 tokens x 4 bytes


def test_disk_and_tokens(folder: Path) -> None:
    data = {"train": {"path": "o/d"}, "max_response_tokens": 100}
    tokens, microbatch, disk = step_lines(run(folder, data=data))
    assert microbatch == "Micro-batch: at most 16384 tokens."
    assert "at most 51,200 sampled (512 responses of 100)" in tokens
    assert "12.0 GiB per checkpoint, 3 kept, 4.00 GiB for the model; together 40.0 GiB" in disk


def test_the_fewest_cheapest_changes_are_proposed(folder: Path) -> None:
    small = run(folder, rollout={"engine": {"type": "native", "kv_cache_tokens": 8192}})
    machine = parse_machine("2xH100-80GB")
    needed = needed_memory(small, machine)
    assert needed is not None and fits(small, machine, needed) and not fits(small, machine, needed - 1)
    proposal = propose(small, machine, 34 * GIB)
    assert proposal is not None and proposal.fits
    assert [change.override for change in proposal.changes] == ["trainer.microbatch='4096 tokens'"]
    hopeless = propose(small, machine, GIB)
    assert hopeless is not None and not hopeless.fits and len(hopeless.changes) == 3
    assert "model.lora='{rank: 16}'" in [change.override for change in hopeless.changes]


def test_libraries_count_where_they_share_the_memory(folder: Path) -> None:
    for machine, shown in (("2xH100-80GB", False), ("cpu", True)):
        header, trainer = memory_rows(run(folder), parse_machine(machine))[:2]
        assert ("libraries" in header) is shown, machine
    assert dict(zip(header, trainer, strict=True))["libraries"] == "0.45"


def test_the_command(folder: Path) -> None:
    file = folder / "run.yaml"
    file.write_text(f"model: {{path: {folder}}}\ndata: {{train: {{path: o/d}}}}\nreward: exact\n")
    result = CliRunner().invoke(app, ["plan", str(file), "--machine", "1xA10-24GB"])
    assert result.exit_code == 0 and "With these changes" in result.output
    assert "The run does not fit into 24 GiB: with sequences" in result.output


def test_processes_without_gpus_share_the_memory_of_the_machine(folder: Path) -> None:
    """Two ranks and their engine's process need the sum, an explorer by itself only its own."""
    machine, native = parse_machine("cpu"), {"type": "native", "kv_cache_tokens": 8192}
    ranks = {"engine": {"type": "fsdp2", "ranks": 2}}
    three = run(folder, trainer=ranks, rollout={"engine": native, "pool": {"engines": 1}})
    together, rows = needed_memory(three, machine), memory_rows(three, machine)[1:]
    assert together is not None and len(rows) == 3
    assert together / GIB == pytest.approx(sum(float(row[-1].split()[0]) for row in rows), abs=0.1)
    buffer = {"type": "sql", "url": "sqlite:///buffer.db"}
    train, explore = (
        run(folder, mode=mode, buffer=buffer, rollout={"engine": native}) for mode in ("train", "explore")
    )
    needs = [needed_memory(each, machine) for each in (train, explore)]
    rows = memory_rows(train, machine)[1:]
    assert [row[0] for row in rows] == ["trainer", "explorer"]
    for need, row in zip(needs, rows, strict=True):
        assert need is not None and need / GIB == pytest.approx(float(row[-1].split()[0]), abs=0.05)


def test_the_fit_is_that_of_the_container(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host_memory, "CGROUP_LIMITS", (limit, tmp_path / "absent"))
    physical = total_memory_bytes()
    for text, expected in (("max\n", physical), (str(8 * GIB), min(physical, 8 * GIB))):
        limit.write_text(text)
        assert total_memory_bytes() == expected
    fit = memory_fit(run(folder))
    assert fit is not None and not fit.fits and fit.proposal is not None
    assert fit.capacity == total_memory_bytes()
    needs = "The run does not fit into 8 GiB: with sequences of maximum length it needs about"
    assert str(fit).startswith(needs)
    limit.write_text("max")
    with on_machine(parse_machine("1xB300-288GB")):
        fit = memory_fit(run(folder))
    assert fit is not None and fit.fits and str(fit).endswith("of 288 GiB.")
