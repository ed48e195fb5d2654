"""Time limit of requests to the Hugging Face hub."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from httpx2 import Client, Request

HUB_TIMEOUT_SECONDS = 60.0
"""Maximum time to connect to the hub, and between two parts of a request or an answer."""


@cache
def limit_hub_requests() -> None:
    """Let each request of huggingface_hub end at a hub that does not answer; many have no limit of their own."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    create = _http._GLOBAL_CLIENT_FACTORY  # that of the user, if there is one

    def limited() -> Client:
        client = create()
        hooks = client.event_hooks
        client.event_hooks = hooks | {"request": [*hooks.get("request", ()), _limit]}
        return client

    set_client_factory(limited)


def _limit(request: Request) -> None:
    given = request.extensions.get("timeout", {})
    kinds = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {
        kind: HUB_TIMEOUT_SECONDS if given.get(kind) is None else given[kind] for kind in kinds
    }
