"""Types of the values of a DeepSpeed configuration that Strop reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from strop.config.redact import redacted_repr

AUTO = "auto"


def _or_auto(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if value == AUTO else validate(value)


Value = TypeVar("Value")
OrAuto = Annotated[Value | None, WrapValidator(_or_auto)]


class _Section(BaseModel):
    """A section; `section_faults` judges its other keys."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Precision(_Section):
    enabled: OrAuto[bool] = None


class _Offload(_Section):
    device: str | None = None


class _Zero(_Section):
    stage: OrAuto[Annotated[int, Field(ge=0, le=3)]] = None
    offload_optimizer: _Offload | None = None
    offload_param: _Offload | None = None


class _Named(_Section):
    """An optimizer or a scheduler."""

    type: str | None = None
    params: dict[str, Any] | None = None


class _Configuration(_Section):
    train_batch_size: OrAuto[int] = None
    train_micro_batch_size_per_gpu: OrAuto[int] = None
    gradient_accumulation_steps: OrAuto[int] = None
    gradient_clipping: OrAuto[float] = None
    bf16: _Precision | None = None
    fp16: _Precision | None = None
    zero_optimization: _Zero | None = None
    optimizer: _Named | None = None
    scheduler: _Named | None = None


def type_faults(values: dict[str, Any]) -> Iterator[str]:
    """A sentence for each value of another type than DeepSpeed reads."""
    try:
        _Configuration.model_validate(values)
    except ValidationError as error:
        for detail in error.errors():
            path = ".".join(map(str, detail["loc"]))
            advice = (
                "write a mapping" if detail["type"] in ("model_type", "dict_type") else detail["msg"].lower()
            )
            yield f"{path} is {redacted_repr(detail['input'], path)}; {advice}"
