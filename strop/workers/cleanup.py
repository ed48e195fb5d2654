"""Cleanup after a block of code, whose errors never replace the error that ended the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=_Closable)


@contextmanager
def keep_first_error(first: BaseException | None) -> Iterator[None]:
    """Around cleanup code: its error is raised, or becomes a note of `first`, the error that came before."""
    try:
        yield
    except Exception as second:
        if first is None:
            raise
        first.add_note(f"After that, a second error: {second or type(second).__name__}")


@contextmanager
def cleanup(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` at the end of the block; its error becomes a note of an error in the block."""
    try:
        yield
    except BaseException as error:
        with keep_first_error(error):
            action()
        raise
    action()


@contextmanager
def closing(resource: C) -> Iterator[C]:
    """Close `resource` at the end of the block; an error of `close` becomes a note of an error in the block."""
    with cleanup(resource.close):
        yield resource
