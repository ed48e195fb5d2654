"""Counterpart of `verl.tools.sandbox_fusion_tools.SandboxFusionTool`: runs the model's Python programs."""

from __future__ import annotations

import asyncio
from typing import Any

from strop.compat.verl.interface.base_tool import BaseTool
from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema, ToolResponse
from strop.config.schema.reward import LocalSandboxConfig, SandboxConfig, SandboxFusionConfig
from strop.sandbox.protocol import Program
from strop.sandbox.registry import open_sandbox
from strop.workflows.threads import run_in_thread

_NO_OUTPUT = "no stdout here"
"""Response to a program that is killed at a limit."""


class SandboxTool(BaseTool):
    """Runs the argument `code` and responds with its output, standard output before standard error.

    Options of `config`, as in verl: `sandbox_fusion_url`, the address of a SandboxFusion server (empty or
    missing: isolated processes on this machine), `default_timeout` (seconds), `memory_limit_mb`, and
    `num_workers`, the maximum number of concurrent programs. `default_language` must be python.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self._seconds = float(config.get("default_timeout", 30))
        self._language = config.get("default_language", "python")
        if self._language != "python":
            raise ValueError(f"default_language is {self._language!r}; the sandbox runs python")
        limits: dict[str, Any] = {
            "timeout_seconds": self._seconds,
            "memory_mb": int(config.get("memory_limit_mb", 1024)),
        }
        url = config.get("sandbox_fusion_url")
        section: SandboxConfig = (
            SandboxFusionConfig(url=url, **limits) if url else LocalSandboxConfig(**limits)
        )
        self._sandbox = open_sandbox(section)
        self._free = asyncio.Semaphore(int(config.get("num_workers", 10)))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Run a program; `parameters` may have a shorter `timeout` in seconds."""
        language = parameters.get("language", self._language)
        if language != "python":
            return ToolResponse(text=f"the sandbox runs python, not {language}"), None, {}
        seconds = min(float(parameters.get("timeout", self._seconds)), self._seconds)
        program = Program(str(parameters.get("code", "")))
        async with self._free:
            result = await run_in_thread(self._sandbox.run, program, seconds)
        text = _NO_OUTPUT if result.stopped else result.stdout + result.stderr
        return ToolResponse(text=text), None, {}
