"""`verl.tools.schemas`: descriptions of tools in OpenAI's format, and the result of a tool."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from strop.workers.json_text import parse_json


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
