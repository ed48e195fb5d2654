"""Base class of the run file's sections, and the shorthand of sections with a `type`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_before_validator_function

from strop.config.paths import MAX_NAME_LENGTH, NAME_PATTERN, check_file_name

MAX_INTEGER = 2**63 - 1
"""Largest integer of a configuration."""


FileName = Annotated[
    str,
    AfterValidator(check_file_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_LENGTH}),
]
"""Name that becomes a file or folder."""


class Section(BaseModel):
    """Base class of sections: immutable, without unknown keys. The docstring under a field is its description
    in the reference and in the JSON Schema."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def faults(self) -> Iterator[str]:
        """Every fault between the fields of this section, one sentence each."""
        return iter(())

    @model_validator(mode="after")
    def _without_faults(self) -> Self:
        found = [*self._too_large()] or [*self.faults()]
        if found:
            raise ValueError("\n".join(found))
        return self

    def _too_large(self) -> Iterator[str]:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                yield f"{name} does not fit into 64 bits; write a smaller integer"


@dataclass(frozen=True, slots=True)
class TypeShorthand:
    """Shorthand for a section with a `type`: `engine: native` is `engine: {type: native}`."""

    default: str | None = None
    """`type` of a section that has none; None if there is only one type."""

    def expand(self, value: Any) -> Any:
        """Return the value with its `type`."""
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, dict) and self.default is not None:
            return {"type": self.default, **value}
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of a type's name, or of a section with its `type` or of the default type."""
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


def type_shorthand(default: str) -> TypeShorthand:
    """Return the shorthand for a union of sections, with the `type` of a section that has none."""
    return TypeShorthand(default)
