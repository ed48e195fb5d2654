"""Whether the Hugging Face hub answers, and the time limit of requests to it."""

from __future__ import annotations

import logging
import ssl
from functools import cache
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.request import Request as UrlRequest

from strop.printable import printable
from strop.workers.http_fetch import fetch

if TYPE_CHECKING:
    from httpx2 import Client, Request

log = logging.getLogger("strop.hub")
ANSWER_SECONDS = 5.0
"""Maximum time in which the hub answers the first question; its libraries ask for minutes."""
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


@cache
def hub_fault(url: str) -> str | None:
    """Reason that no connection to a server could be made; None if it answers, even with an error."""
    if not url.startswith(("http://", "https://")):
        return "it is not an http URL"
    try:
        fetch(UrlRequest(url, method="HEAD"), timeout_seconds=ANSWER_SECONDS, max_bytes=1)
        return None
    except HTTPError:
        return None
    except URLError as error:
        return None if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except (OSError, HTTPException) as error:
        return printable(str(error)) or type(error).__name__


@cache
def warn_of_cache(name: str, url: str, fault: str) -> None:
    """Say once that a name on the hub is looked for in this machine's cache alone."""
    log.warning("%s cannot be reached (%s): %s is read from this machine's cache.", url, fault, name)
