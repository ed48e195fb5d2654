"""Modules of `verl.tools`: descriptions and results of tools, their base class and decorator, and counterparts
of verl's own tools.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from strop.config.schema.reward import LocalSandboxConfig, SandboxConfig, SandboxFusionConfig
from strop.rewards.builtin.gsm8k import gsm8k_reward
from strop.sandbox.protocol import Program
from strop.sandbox.registry import open_sandbox
from strop.workers.json_text import parse_json
from strop.workflows.threads import run_in_thread


class OpenAIFunctionPropertySchema(BaseModel):
    """Description of one parameter; further keys of JSON Schema, such as `items` or `anyOf`, are kept."""

    model_config = ConfigDict(extra="allow")

    type: str | list[str] | None = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(BaseModel):
    """Description of all parameters."""

    type: str
    properties: dict[str, OpenAIFunctionPropertySchema]
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(BaseModel):
    """Description of a function."""

    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema(type="object", properties={})
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    """Description of a tool."""

    type: str
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(BaseModel):
    """A call, with its arguments as JSON text."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(BaseModel):
    """A call, with its arguments as values."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed_schema: OpenAIFunctionParsedSchema,
    ) -> tuple[OpenAIFunctionCallSchema, bool]:
        """The call, and whether its arguments are not a JSON object (then it has none)."""
        try:
            arguments = parse_json(parsed_schema.arguments)
        except ValueError:
            arguments = None
        is_object = isinstance(arguments, dict)
        call = OpenAIFunctionCallSchema(name=parsed_schema.name, arguments=arguments if is_object else {})
        return call, not is_object


class OpenAIFunctionToolCall(BaseModel):
    """A call with its id."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """Result of a tool. Images come before the text in the message; a result with video fails the rollout."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Whether there is no content."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Whether there is text, and nothing else."""
        return bool(self.text) and not (self.image or self.video)


__all__ = ["BaseTool", "OpenAIFunctionToolSchema", "ToolResponse"]


class BaseTool:
    """A tool of which each rollout has an instance with an id; one object serves all rollouts."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        """`config` and `tool_schema` are those of the configuration file; a class without the latter defines
        `get_openai_tool_schema`."""
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        if self.tool_schema is None:
            raise ValueError(
                f"{type(self).__name__} has no schema: write tool_schema in the configuration file, or define "
                "get_openai_tool_schema in the class"
            )
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema | None:
        """Description of the tool."""
        return getattr(self, "tool_schema", None)

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance; returns its id."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Execute a call; returns the response, the reward of the call, and metrics."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Reward of the instance, after the rollout."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the instance."""


_MARK = "__strop_function_tool__"


@dataclass(frozen=True, slots=True)
class FunctionToolMark:
    """Arguments of the decorator."""

    name: str
    schema: OpenAIFunctionToolSchema | Mapping[str, Any] | None


def function_tool(
    name: str | Callable[..., Any] | None = None,
    *,
    schema: OpenAIFunctionToolSchema | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Mark a function as a tool: `@function_tool`, or `@function_tool("name", schema=...)`.

    Without a schema, the annotations and the docstring of the function describe it.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        chosen = name if isinstance(name, str) else function.__name__
        setattr(function, _MARK, FunctionToolMark(chosen, schema))
        return function

    return mark(name) if callable(name) else mark


def function_tool_mark(value: Any) -> FunctionToolMark | None:
    """Arguments of the decorator of a function; None for a value without it."""
    mark = getattr(value, _MARK, None)
    return mark if isinstance(mark, FunctionToolMark) else None


_NOT_IMPROVED = -0.05
"""Reward of a call whose answer is not better than the one before."""


class Gsm8kTool(BaseTool):
    """Scores the argument `answer` against the instance's `ground_truth`; its reward is the last score."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None) -> None:
        super().__init__(config, tool_schema)
        self._answers: dict[str, Any] = {}
        self._rewards: dict[str, float] = {}

    async def create(
        self, instance_id: str | None = None, ground_truth: Any = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        """`ground_truth` is an argument of its own, or one of `create_kwargs`."""
        instance_id = instance_id or str(uuid4())
        if ground_truth is None:
            ground_truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if ground_truth is None:
            raise ValueError("the task has no extra_info.tools_kwargs.<tool>.create_kwargs.ground_truth")
        self._answers[instance_id] = ground_truth
        self._rewards[instance_id] = 0.0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Score an answer; a call that does not improve the score has a negative reward."""
        answer = str(parameters.get("answer", ""))
        reward = float(gsm8k_reward(answer, self._answers[instance_id], method="flexible"))
        improved = reward > self._rewards[instance_id]
        self._rewards[instance_id] = reward
        text = f"Current parsed answer={answer!r} reward={reward}"
        return ToolResponse(text=text), 0.0 if improved else _NOT_IMPROVED, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Score of the last answer; 0 before the first."""
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the instance."""
        del self._answers[instance_id], self._rewards[instance_id]


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
