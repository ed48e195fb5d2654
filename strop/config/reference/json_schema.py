"""JSON Schema of the run file, for completion and validation in editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from strop.config.schema.base import Section
from strop.config.schema.run import Run
from strop.config.units import Amount

INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""Schema of an interpolation such as `${data.max_prompt_tokens}`, which is allowed for any value."""


def json_schema() -> dict[str, Any]:
    """Return the schema in draft 7, which every editor supports. Descriptions are the fields' docstrings.

    It has keys, types, bounds and shorthands. `strop check` also checks sections against each other.
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
    """Pydantic's generator, without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, Section):
            return dft.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        return str(dft) if isinstance(dft, Amount) else super().encode_default(dft)


def _section(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Convert a section to draft 7, with an interpolation as an alternative for every value."""
    properties = {name: _field(field) for name, field in schema.get("properties", {}).items()}
    rest = {key: value for key, value in schema.items() if key not in ("properties", "title")}
    rest["description"] = " ".join(rest.get("description", "").split())
    return {**rest, "properties": properties}


def _field(field: JsonSchemaValue) -> JsonSchemaValue:
    annotations: JsonSchemaValue = {key: field[key] for key in ("description", "default") if key in field}
    if "description" in annotations:
        annotations["description"] = " ".join(annotations["description"].split())
    if isinstance(annotations.get("default"), dict):
        del annotations["default"]  # The fields of the section have their own defaults.
    value = _value({key: item for key, item in field.items() if key not in annotations})
    if "const" in value:
        return {**annotations, **value}
    alternatives = value["anyOf"] if set(value) == {"anyOf"} else [value]
    return {**annotations, "anyOf": [*alternatives, {"$ref": "#/$defs/interpolation"}]}


def _value(value: JsonSchemaValue) -> JsonSchemaValue:
    """Convert a positional list, whose items have one type, to a draft 7 list of fixed length."""
    if "prefixItems" in value:
        first, *others = value["prefixItems"]
        assert all(other == first for other in others)
        value = {**{key: item for key, item in value.items() if key != "prefixItems"}, "items": first}
    return {
        key: [_value(item) for item in found] if key == "anyOf" else found for key, found in value.items()
    }


def schema_text() -> str:
    """The JSON Schema with one property per line."""
    return "\n".join(_lines(json_schema())) + "\n"


def _lines(value: dict[str, Any], above: str = "", indent: str = "") -> Iterator[str]:
    yield "{"
    last = len(value) - 1
    for number, (key, item) in enumerate(value.items()):
        comma = "," if number < last else ""
        name = f"{indent} {json.dumps(key)}: "
        if isinstance(item, dict) and item and above != "properties":
            first, *more = _lines(item, key, indent + " ")
            yield name + first
            yield from more[:-1]
            yield more[-1] + comma
        else:
            yield name + json.dumps(item, ensure_ascii=False) + comma
    yield indent + "}"
