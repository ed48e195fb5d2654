"""Writer of FSDP shards in verl's format, for simulated ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore


def write(weights: Path, folder: Path, rank: int, shape: tuple[int, ...]) -> None:
    world = 1
    for size in shape:
        world *= size
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[-len(shape) :])
    placements = [*([Replicate()] * (len(shape) - 1)), Shard(0)]
    state = {}
    for name, whole in load_file(weights).items():
        parts = whole.chunk(shape[-1])
        local = parts[rank % shape[-1]].clone() if rank % shape[-1] < len(parts) else whole[:0].clone()
        state[name] = DTensor.from_local(
            local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    dist.destroy_process_group()
    torch.save(state, folder / f"model_world_size_{world}_rank_{rank}.pt")


if __name__ == "__main__":
    for number in range(int(sys.argv[3])):
        write(Path(sys.argv[1]), Path(sys.argv[2]), number, tuple(map(int, sys.argv[4].split(","))))
