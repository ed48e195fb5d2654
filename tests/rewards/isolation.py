"""The sandbox of the tests of `code`, which are skipped where this machine cannot isolate programs."""

from __future__ import annotations

import pytest

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.sandbox.registry import open_sandbox

SANDBOX = LocalSandboxConfig(timeout_seconds=30)


@pytest.fixture(scope="module", autouse=True)
def needs_isolation() -> None:
    """Skip the tests of a module that imports this fixture."""
    try:
        open_sandbox(SANDBOX)
    except SandboxError as error:
        pytest.skip(str(error))
