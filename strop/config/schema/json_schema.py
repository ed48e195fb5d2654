"""The JSON Schema of the run file, with which an editor completes and checks it."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from strop.config.schema.base import Section
from strop.config.schema.run import Run
from strop.config.units import Amount

INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""`${data.max_prompt_tokens}`, `${oc.env:DATA}`: may stand for any value."""


def json_schema() -> dict[str, Any]:
    """The schema, as draft 7 has it, which every editor knows. Descriptions are the fields' docstrings.

    It knows keys, types, bounds and short forms. What only fits together or not, `strop check` knows.
    """
    schema = Run.model_json_schema(schema_generator=_Generator)
    definitions = {name: _section(section) for name, section in schema.pop("$defs").items()}
    definitions["interpolation"] = INTERPOLATION
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A run file of Strop",
        **_section(schema),
        "$defs": definitions,
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's, without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, Section):
            return dft.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        return str(dft) if isinstance(dft, Amount) else super().encode_default(dft)


def _section(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The same, in draft 7's words, with an interpolation allowed wherever a value is."""
    properties = {name: _field(field) for name, field in schema.get("properties", {}).items()}
    rest = {key: value for key, value in schema.items() if key not in ("properties", "title")}
    rest["description"] = " ".join(rest.get("description", "").split())
    return {**rest, "properties": properties}


def _field(field: JsonSchemaValue) -> JsonSchemaValue:
    said: JsonSchemaValue = {key: field[key] for key in ("description", "default") if key in field}
    if "description" in said:
        said["description"] = " ".join(said["description"].split())
    if isinstance(said.get("default"), dict):
        del said["default"]  # a section's defaults stand with its own fields
    value = _value({key: item for key, item in field.items() if key not in said})
    if "const" in value:
        return {**said, **value}
    alternatives = value["anyOf"] if set(value) == {"anyOf"} else [value]
    return {**said, "anyOf": [*alternatives, {"$ref": "#/$defs/interpolation"}]}


def _value(value: JsonSchemaValue) -> JsonSchemaValue:
    """A positional list, all of whose items are of one kind, is in draft 7 a list of that length."""
    if "prefixItems" in value:
        first, *others = value["prefixItems"]
        assert all(other == first for other in others)
        value = {**{key: item for key, item in value.items() if key != "prefixItems"}, "items": first}
    return {
        key: [_value(item) for item in found] if key == "anyOf" else found for key, found in value.items()
    }
