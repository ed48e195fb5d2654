"""What every section of a run file is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function


class Section(BaseModel):
    """Unknown keys are refused, nothing changes after loading, and the docstring under each field
    is its description in the reference, the JSON Schema and the Studio."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


@dataclass(frozen=True, slots=True)
class ByName:
    """Lets `engine: native` stand for `engine: {type: native}`, in validation and in the JSON Schema."""

    default: str | None = None
    """The kind of a section that says no `type`; None where there is but one."""

    def complete(self, value: Any) -> Any:
        """The value with its `type`."""
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, dict) and self.default is not None:
            return {"type": self.default, **value}
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self.complete, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A name, or a section that says its `type` or is of the default kind."""
        written = handler(schema)
        kinds = {
            handler.resolve_ref_schema(kind)["properties"]["type"]["const"]: kind
            for kind in written.get("oneOf", [written])
        }
        sections = [
            kind if name == self.default or len(kinds) == 1 else {"allOf": [kind], "required": ["type"]}
            for name, kind in kinds.items()
        ]
        return {"anyOf": [{"enum": list(kinds)}, *sections]}


KindByName = ByName()
"""For a section of which there is one kind."""


def kind_or(default: str) -> ByName:
    """For a union: a section that says no `type` is of the default's."""
    return ByName(default)
