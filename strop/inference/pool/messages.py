"""What a pool tells its engines, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strop.errors import StropError
from strop.inference.native import NativeEngine
from strop.types import Completion, SampleRequest
from strop.workers.shared import Shared


@dataclass(frozen=True, slots=True)
class Make:
    """Make the engine. Answered by `Made`."""

    make: Callable[[], NativeEngine]


@dataclass(frozen=True, slots=True)
class Load:
    """Take these weights. Answered by `Loaded`."""

    weights: Shared
    """A safetensors file."""
    version: int
    number: int
    """No other load has it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Complete these, all let in together. Each is answered by `Answer` once it is done, or by `Failed`."""

    requests: dict[int, SampleRequest]
    """By number."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits for these any more."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """Go on drawing tokens, or stop."""

    on: bool


Message = Make | Load | Ask | Forget | Draw


@dataclass(frozen=True, slots=True)
class Made:
    """The engine is there."""

    forward: str
    """In words."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """It has taken the weights of the load with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's completion."""

    number: int
    completion: Completion


@dataclass(frozen=True, slots=True)
class Failed:
    """What was raised."""

    number: int | None
    """By which request; None where it was the engine itself, in its making or with new weights."""
    message: str
    kind: type[StropError] | None
    """The error's class, where it is one of Strop's, which are told without a traceback."""


Reply = Made | Loaded | Answer | Failed
