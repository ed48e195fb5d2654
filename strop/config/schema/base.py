"""What every section of a run file is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


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


def _from_name(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


KindByName = BeforeValidator(_from_name)
"""Lets `engine: native` stand for `engine: {type: native}`."""


def kind_or(default: str) -> BeforeValidator:
    """The same, for a union: a section that says no `type` is of the default's."""

    def complete(value: Any) -> Any:
        return {"type": default, **value} if isinstance(value, dict) else _from_name(value)

    return BeforeValidator(complete)
