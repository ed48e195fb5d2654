"""Writing of safetensors files with the permissions of any other new file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write contiguous tensors by name. safetensors makes its files readable by their owner only; these have the
    permissions that the umask gives, as the files next to them have."""
    path.touch()
    permissions = path.stat().st_mode
    save_file(dict(tensors), path, dict(metadata) if metadata else None)
    path.chmod(permissions)
