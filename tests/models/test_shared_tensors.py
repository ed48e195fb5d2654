"""Tensors in memory that several processes map."""

import gc
from pathlib import Path

import torch

from strop.models.shared_weights import SharedTensors


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_tensors_and_their_shared_storages_are_the_same_for_all_that_map_them():
    whole = torch.arange(6.0).view(2, 3)
    first = SharedTensors.of(
        {"whole": whole, "turned": whole.t(), "small": torch.tensor([1], dtype=torch.int8)}
    )
    second = SharedTensors.open(first.handle)
    second.tensors["whole"][1, 2] = 9
    assert first.tensors["turned"][2, 1] == 9 and whole[1, 2] == 5
    assert second.tensors["small"].tolist() == [1]
    assert second.place_of(second.tensors["turned"]) == first.place_of(first.tensors["turned"])
    assert second.place_of(whole) is None


def test_many_tensors_take_few_descriptors():
    """A process may have 1,024 open, and a map of Python keeps one of its file."""
    gc.collect()  # earlier tests may have left some open
    before = descriptors()
    shared = SharedTensors.zeros({str(number): torch.zeros(3) for number in range(300)})
    mapped = SharedTensors.open(shared.handle)
    assert descriptors() <= before + 4
    tensor = mapped.tensors["299"]
    del shared, mapped
    assert tensor.tolist() == [0, 0, 0]  # the memory lives as long as a tensor does
    del tensor
    assert descriptors() <= before
