"""Time limit of requests to the Hugging Face hub."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from httpx2 import Client, Request

CHANGE_TIMEOUT_SECONDS = 60.0
"""Maximum time between two parts of a request that changes something, such as a commit, or of its answer. Requests that
read have HF_HUB_DOWNLOAD_TIMEOUT."""


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
    from huggingface_hub import constants

    seconds = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    if request.method not in ("GET", "HEAD"):
        seconds = max(seconds, CHANGE_TIMEOUT_SECONDS)
    given = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {
        kind: seconds if given.get(kind) is None else given[kind]
        for kind in ("connect", "read", "write", "pool")
    }
