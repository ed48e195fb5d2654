"""Memory that a process keeps on a CPU after it was used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strop.config.schema.model import ModelConfig
from strop.models.loading import load_model
from tests.models.models import make

GROWTH = """
import re
from pathlib import Path

import torch

from strop.models.library_settings import limit_cpu_memory


def resident_mb():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3


limit_cpu_memory()
before, kept = resident_mb(), []
for _ in range(20):
    large = [torch.ones(16 << 18) for _ in range(4)]
    kept.append(torch.ones(200))
    del large
print(resident_mb() - before)
"""


def growth_mb(**environment: str) -> float:
    """Growth of a process that frees 64 MiB of large tensors after each small one that it keeps."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH],
        env={"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        check=True,
    )
    return float(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and glibc's settings")
def test_large_tensors_are_returned_to_the_system_unless_the_environment_says_otherwise():
    assert growth_mb() < 40
    kept = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "1000000000")
    assert growth_mb(**kept) > 60, "the heap is kept"


@pytest.mark.parametrize(("before", "after"), [(None, "64"), ("512", "512")])
def test_loading_a_model_limits_the_compiled_products_of_onednn(
    before: str | None, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    if before is not None:
        monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", before)
    make("llama").save_pretrained(tmp_path)
    load_model(ModelConfig(path=str(tmp_path)), device="cpu")
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == after
