"""A chat endpoint that speaks OpenAI's protocol: asking it, and asking again when it cannot answer yet."""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from strop.errors import RewardError

_LONGEST_WAIT_SECONDS = 60.0
_LONGEST_QUOTE = 300
_NO_ACCESS = (401, 403, 404)
"""No request will be answered: a key, a model or an address is wrong."""
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
"""What another try may cure."""


class Refused(RewardError):
    """This one request is not taken (too long, say); others are."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the endpoint said, and what it cost."""

    text: str
    tokens: int | None
    """Of request and reply, where the endpoint says."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`<url>/chat/completions`. Any thread may ask."""

    url: str
    key: str | None
    timeout_seconds: float
    retries: int
    backoff_seconds: float
    """The first wait, which doubles with each try; a `Retry-After` of the endpoint's counts instead."""

    def check(self) -> None:
        """Raises RewardError where nothing answers there, or the key is not accepted. Costs nothing."""
        try:
            self._open("/models", None).close()
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise self._given_up(f"does not accept the key ({_said(error)})") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._given_up(f"does not answer ({_reason(error)})") from error

    def chat(self, body: Mapping[str, Any]) -> Reply:
        """The reply to one request.

        Raises Refused where the endpoint takes others but not this one, and RewardError where it does
        not answer after all tries, or never will.
        """
        for attempt in range(self.retries + 1):
            wait = self.backoff_seconds * 2**attempt
            try:
                with self._open("/chat/completions", json.dumps(body).encode()) as response:
                    return _read(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    said = _said(error)
                    if error.code in _NO_ACCESS:
                        raise self._given_up(f"answers {said}") from error
                    if error.code not in _PASSING:
                        raise Refused(f"was refused by the endpoint: {said}") from error
                    wait = _retry_after(error.headers) or wait
            except (OSError, http.client.HTTPException) as error:
                said = _reason(error)
            if attempt < self.retries:
                # Not all at the same moment again.
                time.sleep(min(wait, _LONGEST_WAIT_SECONDS) * random.uniform(0.8, 1.2))
        raise self._given_up(f"did not answer in {self.retries + 1} tries; the last: {said}")

    def _open(self, path: str, data: bytes | None) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url.rstrip("/") + path, data=data, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self.timeout_seconds)
        return response

    def _given_up(self, what: str) -> RewardError:
        return RewardError(
            f"The judge at {self.url} {what}. Start it, or correct `url`, `model` and `key_variable` under "
            "reward.judges; what it has said so far is kept, and the same command goes on from the last "
            "checkpoint."
        )


def _read(content: bytes) -> Reply:
    try:
        whole = json.loads(content)
        text = whole["choices"][0]["message"]["content"]
        tokens = (whole.get("usage") or {}).get("total_tokens")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RewardError(
            f"The judge's endpoint does not speak OpenAI's protocol: its reply was {_quoted(content)}."
        ) from error
    return Reply(text or "", tokens)


def _said(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}: {_quoted(error.read())}"


def _quoted(content: bytes) -> str:
    return repr(content.decode(errors="replace").strip()[:_LONGEST_QUOTE])


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) or type(cause).__name__


def _retry_after(headers: Message) -> float | None:
    try:
        return float(headers.get("Retry-After", ""))
    except ValueError:  # none, or a date
        return None
