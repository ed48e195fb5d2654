"""`reward.sandbox`: isolation and limits of the programs that the `code` reward runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class SandboxLimits(Section):
    """Limits of each program, in every kind of sandbox."""

    timeout_seconds: float = Field(6.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one program, which is one test or a group of asserts."""
    memory_mb: int = Field(1024, gt=0)
    """Maximum memory of one program, in MB."""
    concurrency: int = Field(2, gt=0)
    """Number of tests of a response that run at the same time, in each worker process of `reward.workers`."""


class LocalSandboxConfig(SandboxLimits):
    """Isolated processes of this machine."""

    type: Literal["local"] = "local"
    mechanism: Literal["auto", "bubblewrap", "process"] = "auto"
    """`bubblewrap` for the program of that name, `process` for the filters of the kernel alone; `auto` for
    bubblewrap if it works here, otherwise `process`."""
    minimum: Literal["limited", "filtered", "confined", "namespaced"] = "confined"
    """Lowest acceptable isolation level; a run on a machine that does not reach it stops with an error."""
    file_mb: int = Field(16, gt=0)
    """Maximum size of a file that a program writes, in MB."""
    output_kb: int = Field(1024, gt=0)
    """Maximum size of a program's output, in KB; a program that writes more fails."""


class SandboxFusionConfig(SandboxLimits):
    """SandboxFusion server, as for verl's `sandbox_fusion`."""

    type: Literal["sandbox_fusion"] = "sandbox_fusion"
    url: str = Field(pattern=r"^https?://")
    """Address of the server's `run_code` function, such as `http://localhost:8080/run_code`."""
    retries: int = Field(3, ge=0)
    """Maximum number of repetitions of a request that fails on the server, or gets no answer."""


SandboxConfig = Annotated[
    LocalSandboxConfig | SandboxFusionConfig, Field(discriminator="type"), type_shorthand("local")
]
