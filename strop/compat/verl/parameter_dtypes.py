"""Data types of trained parameters in verl's configurations."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck

_HALF = ("fp16", "float16")
PARAMETER_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    **dict.fromkeys(_HALF, "float32"),
}
"""Data type of `model.dtype` for each name. All float16 values are float32 values."""


def half_parameters(key: str) -> InactiveCheck:
    """Notice for parameters in float16, in which AdamW's state of small gradients is 0."""

    def notice(foreign: ForeignValues) -> str | None:
        if foreign[key] not in _HALF:
            return None
        return (
            "parameters in float16 are trained in float32, which takes twice their memory: the squares of small "
            "gradients are 0 in float16, and AdamW divides by them"
        )

    return notice
