"""Trinity's `service.data_juicer` as the fields of Strop's `data_juicer` operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues
from strop.config.schema.data_juicer import DataJuicerSection

SERVICE = "service.data_juicer"


def has_service(foreign: ForeignValues) -> bool:
    """Whether the file names a service, or has one started."""
    return is_started(foreign) or bool(foreign[f"{SERVICE}.server_url"])


def read_service(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The fields of an operator; auto_start wins over server_url. Raises ConfigError without a service."""
    if is_started(foreign):
        port = foreign[f"{SERVICE}.port"] if foreign.is_set(f"{SERVICE}.port") else None
        return {"port": port} if port else {}
    if foreign[f"{SERVICE}.server_url"] is None:
        raise foreign.error_for(
            at,
            f"{at} is data_juicer: write {SERVICE}.server_url, the address of a service that runs, or "
            f"{SERVICE}.auto_start: true, and Strop starts one with the interpreter in STROP_DATA_JUICER_PYTHON.",
        )
    return {"url": foreign[f"{SERVICE}.server_url"]}


def write_service(section: DataJuicerSection) -> Iterator[tuple[str, Any]]:
    """The keys of an operator's service."""
    if section.url is not None:
        yield f"{SERVICE}.server_url", section.url
        return
    yield f"{SERVICE}.auto_start", True
    if section.port:
        yield f"{SERVICE}.port", section.port


def is_started(foreign: ForeignValues) -> bool:
    """Whether the file has a service started."""
    return foreign.is_set(f"{SERVICE}.auto_start") and bool(foreign[f"{SERVICE}.auto_start"])
