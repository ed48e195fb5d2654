"""Messages about failures in other processes."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from strop.errors import StropError


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """An exception in another process, in a form that can be sent."""

    message: str
    """The text of a `StropError`; the traceback of any other exception."""
    error_type: type[StropError] | None
    """The class of a `StropError`; None for any other exception."""

    @classmethod
    def from_exception(cls, error: BaseException) -> RemoteFailure:
        """The failure to send for an exception."""
        if isinstance(error, StropError):
            return cls(str(error), type(error))
        return cls("".join(traceback.format_exception(error)), None)

    def to_error(self, sender: str, default: type[StropError]) -> StropError:
        """The exception to raise in this process. An exception that was no `StropError` becomes `default`,
        with the sender's name and the traceback as its text."""
        if self.error_type is None:
            return default(f"{sender} failed:\n{self.message}")
        return self.error_type(self.message)
