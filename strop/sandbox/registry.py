"""Registry of the kinds of sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from strop.config.schema.reward import SandboxConfig
from strop.sandbox.local import open_local
from strop.sandbox.protocol import Sandbox
from strop.sandbox.sandbox_fusion import SandboxFusion

SANDBOXES: Mapping[str, Callable[[Any], Sandbox]] = {
    "local": open_local,
    "sandbox_fusion": SandboxFusion,
}
"""`type` of the section `reward.sandbox` -> function that opens the sandbox."""


@lru_cache
def open_sandbox(config: SandboxConfig) -> Sandbox:
    """Open the configured sandbox; one per process and configuration. Raises SandboxError if this machine
    cannot isolate programs as required."""
    return SANDBOXES[config.type](config)
