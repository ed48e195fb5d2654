"""Reader of verl's FSDP checkpoints: joined shards, adapters, and faults."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from strop.compat.verl.fsdp_checkpoint import (
    find_config_folder,
    is_verl_fsdp_checkpoint,
    load_verl_fsdp_checkpoint,
)
from strop.errors import ModelError
from strop.models.tiny import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # An odd vocabulary, so that ranks hold parts of different sizes.
    return make_model(tmp_path_factory.mktemp("m") / "m", ["one and two"], vocab_size=281, hidden_size=32)


def shards(weights: Path, folder: Path, *shape: int) -> Path:
    """Write the shards of each rank of a mesh of this shape, as verl does; the ranks are simulated."""
    folder.mkdir()
    world = math.prod(shape)
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[-len(shape) :])
            placements = [*([Replicate()] * (len(shape) - 1)), Shard(0)]
            state = {}
            for name, whole in load_file(weights).items():
                parts = [*whole.chunk(shape[-1]), *[whole[:0]] * shape[-1]]  # a rank may have no rows
                local = parts[rank % shape[-1]].clone()
                sizes = {"shape": whole.shape, "stride": whole.stride()}
                state[name] = DTensor.from_local(local, mesh, placements, run_check=False, **sizes)
        finally:
            dist.destroy_process_group()
        torch.save(state, folder / f"model_world_size_{world}_rank_{rank}.pt")
    return folder


@pytest.fixture(scope="module")
def actor(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shards(model / "model.safetensors", tmp_path_factory.mktemp("v") / "actor", 2)
    (folder / "huggingface").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, folder / "huggingface" / name)
    return folder


def test_joined_shards_are_bitwise_equal(model: Path, actor: Path) -> None:
    assert is_verl_fsdp_checkpoint(actor) and not is_verl_fsdp_checkpoint(model)
    read = dict(load_verl_fsdp_checkpoint(actor, find_config_folder(actor)).named_parameters())
    saved = load_file(model / "model.safetensors")
    assert saved.keys() == read.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in saved.items())


def test_replicas_are_read_once(model: Path, tmp_path: Path) -> None:
    folder = shards(model / "model.safetensors", tmp_path / "hsdp", 2, 2)
    read = dict(load_verl_fsdp_checkpoint(folder, find_config_folder(folder, model)).named_parameters())
    assert all(torch.equal(read[k], v) for k, v in load_file(model / "model.safetensors").items())


def test_an_adapter_is_merged(model: Path, tmp_path: Path) -> None:
    saved = load_file(model / "model.safetensors")
    target = "model.layers.0.self_attn.q_proj"
    out, inside = saved[f"{target}.weight"].shape
    a, b = torch.randn(4, inside), torch.randn(out, 4)
    state = {f"base_model.model.{name}": tensor for name, tensor in saved.items()}
    state[f"base_model.model.{target}.base_layer.weight"] = state.pop(f"base_model.model.{target}.weight")
    state[f"base_model.model.{target}.lora_A.default.weight"] = a
    state[f"base_model.model.{target}.lora_B.default.weight"] = b
    folder = tmp_path / "lora"
    folder.mkdir()
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    with pytest.raises(ModelError, match="such as lora_alpha=16"):
        load_verl_fsdp_checkpoint(folder, model)
    (folder / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    for alpha in (None, 8.0):
        read = dict(load_verl_fsdp_checkpoint(folder, model, lora_alpha=alpha).named_parameters())
        torch.testing.assert_close(read[f"{target}.weight"].data, saved[f"{target}.weight"] + 2.0 * (b @ a))
        assert torch.equal(
            read["model.layers.0.mlp.up_proj.weight"], saved["model.layers.0.mlp.up_proj.weight"]
        )
    (folder / "lora_adapter").mkdir()
    options = {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj"]}
    for values, scale in (({}, 4.0), ({"alpha_pattern": {"q_proj": 2}}, 1.0), ({"use_rslora": False}, 2.0)):
        (folder / "lora_adapter" / "adapter_config.json").write_text(json.dumps(options | values))
        read = dict(load_verl_fsdp_checkpoint(folder, model).named_parameters())
        torch.testing.assert_close(read[f"{target}.weight"].data, saved[f"{target}.weight"] + scale * (b @ a))
    (folder / "lora_adapter" / "adapter_config.json").write_text(json.dumps(options | {"use_dora": True}))
    with pytest.raises(ModelError, match="its use_dora is true"):
        load_verl_fsdp_checkpoint(folder, model)


class Ran:
    """An object whose unpickling runs a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran"),))  # type: ignore[return-value]


def test_code_in_a_shard_is_not_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Ran()}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(ModelError, match="could run any code"):
        load_verl_fsdp_checkpoint(tmp_path, model)
    assert not Path("ran").exists()


def test_faults_of_a_folder(model: Path, actor: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(actor, tmp_path / "actor"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        find_config_folder(folder, tmp_path)
    other = make_model(tmp_path / "other", ["one"], vocab_size=281, hidden_size=48, layers=1)
    with pytest.raises(ModelError, match=r"not of the model|do not fit"):
        load_verl_fsdp_checkpoint(folder, other)
    (folder / "model_world_size_2_rank_1.pt").write_bytes(b"PK broken")
    with pytest.raises(ModelError, match=r"rank_1\.pt"):
        load_verl_fsdp_checkpoint(folder, model)
    (folder / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(ModelError, match=r"lacks model_world_size_2_rank_1\.pt"):
        load_verl_fsdp_checkpoint(folder, model)
    save_file({"a": torch.zeros(1)}, folder / "x.safetensors")
    shutil.copy(folder / "model_world_size_2_rank_0.pt", folder / "model_world_size_4_rank_0.pt")
    with pytest.raises(ModelError, match="of 2 and 4 ranks"):
        load_verl_fsdp_checkpoint(folder, model)
