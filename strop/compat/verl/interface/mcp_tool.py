"""`verl.tools.mcp_base_tool` and `verl.tools.mcp_search_tool`: classes of the tools of MCP servers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

from strop.compat.verl.interface.base_tool import BaseTool
from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema, ToolResponse

ServerCall = Callable[[dict[str, Any], float], Awaitable[Any]]
"""Calls the tool at its server, with the arguments and a time limit in seconds; returns MCP's result."""
_TIMEOUT_SECONDS = 30.0


class MCPBaseTool(BaseTool):
    """A tool of an MCP server. A subclass may define `_parse_tool_result`, which turns a result into text."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self.timeout: float = config.get("timeout", _TIMEOUT_SECONDS)
        self._instance_dict: dict[str, dict[str, Any]] = {}
        self._call_server: ServerCall | None = None

    def connect(self, call: ServerCall) -> None:
        """Set the function that calls the server; before the first call."""
        self._call_server = call

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance, which collects the results of its calls."""
        instance_id = instance_id or str(uuid4())
        self._instance_dict[instance_id] = {"response": "", "reward": []}
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Call the server; returns the text of its result. Raises what the call raises."""
        text, metadata = await self._call_tool(instance_id, parameters)
        self._instance_dict[instance_id]["reward"].append(text.strip())
        return ToolResponse(text=text), 0.0, metadata

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> Any:
        """The texts of all results, as in verl; Strop takes none of them for a number."""
        return self._instance_dict[instance_id]["reward"]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the instance."""
        del self._instance_dict[instance_id]

    async def _call_tool(self, instance_id: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        assert self._call_server is not None
        result = await self._call_server(parameters, self.timeout)
        return self._parse_tool_result(result.content)

    def _parse_tool_result(self, content: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """Text for the model, and metrics: the text parts, joined with spaces; other parts are left out."""
        return " ".join(part.text for part in content if part.type == "text"), {}


class MCPSearchTool(MCPBaseTool):
    """A search whose results are objects with `query` and `results`; the model gets the lists of results."""

    def _parse_tool_result(self, content: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        texts = [part.text.replace("'", '"') for part in content if part.type == "text"]
        queries = [re.search(r'query"\s*:\s*"([^"]+)"', text) for text in texts]
        results = map(_results, texts)
        metrics = {
            "queries": [found[1] if found else "" for found in queries],
            "query_count": len(queries),
            "total_results": sum(len(re.findall(r'"title"\s*:', text)) for text in texts),
        }
        return "".join(results), metrics


def _results(text: str) -> str:
    """The first list of `results` in a text, up to its first closing bracket, as verl reads it; empty without one."""
    opening = re.search(r'"results"\s*:\s*(?=\[)', text)
    end = -1 if opening is None else text.find("]", opening.end())
    return "" if opening is None or end < 0 else text[opening.end() : end + 1]
