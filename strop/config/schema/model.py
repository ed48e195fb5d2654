"""`model`: what is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from strop.config.schema.base import Section


class Lora(Section):
    """Train a low-rank adapter instead of all weights (arXiv 2106.09685)."""

    rank: int = Field(64, gt=0)
    """Rank of the two factors."""
    alpha: float = Field(32, gt=0)
    """The update is scaled by alpha / rank."""
    targets: str | tuple[str, ...] = "all-linear"
    """Modules that get an adapter: `all-linear`, a list of names, or a regular expression."""
    exclude: str | tuple[str, ...] | None = None
    """Modules that get none, though `targets` names them: a list of names or a regular expression."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapter's inputs set to zero in training."""


class Model(Section):
    """What is trained."""

    path: str
    """A Hugging Face model folder, or a name on the hub."""
    tokenizer: str | None = None
    """A tokenizer folder or name; the model's own when left out."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters that are trained, and so of the optimizer's state."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Of the matrix products; `dtype` when left out. bfloat16 over float32 parameters is mixed precision."""
    override: dict[str, Any] = Field(default_factory=dict)
    """Values in place of those in the model's config.json, such as `attention_dropout: 0.1`; no new ones."""
    imports: tuple[str, ...] = ()
    """Modules, or files `name.py`, that are imported before the model is loaded: they may register it."""
    lora: Lora | None = None
    """Train an adapter of this shape; the whole model when left out."""
    gradient_checkpointing: bool = False
    """Recompute each layer in the backward pass: less memory, about a third more work."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""
