"""Client of an OpenAI-compatible chat completions endpoint, with retries, and an on-disk cache of its replies."""

from __future__ import annotations

import hashlib
import http.client
import json
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.errors import RewardError
from strop.workers.http_fetch import FATAL_STATUSES, RETRYABLE_STATUSES, fetch, retry_wait_seconds
from strop.workers.json_text import parse_json

_MAX_QUOTE_CHARS = 300
_MAX_REPLY_BYTES = 16_000_000
_FILE = "replies.sqlite3"


class RequestRejectedError(RewardError):
    """The endpoint rejects this one request (too long, say) but accepts others."""


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """Reply of the endpoint, and its cost."""

    text: str
    tokens: int | None
    """Tokens of request and reply; None if the endpoint does not report them."""


@dataclass(frozen=True, slots=True)
class ChatCompletionsClient:
    """Client of `<url>/chat/completions`. Any thread may call."""

    url: str
    key: str | None
    timeout_seconds: float
    retries: int
    backoff_seconds: float
    """First wait between attempts, which doubles each time; the endpoint's `Retry-After` takes precedence."""
    owner: str = "The judge"
    """Name of the model in messages."""
    keys: str = "`url`, `model` and `api_key_env` under reward.judges"
    """Keys of the run file to correct, for messages."""
    on_wait: Callable[[str], None] | None = None
    """Called with a message before each wait; None for no message."""

    def check(self) -> None:
        """Raises RewardError if the endpoint does not respond or rejects the key. Free of charge."""
        try:
            self._fetch("/models", None, max_bytes=1)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise self._fatal_error(f"does not accept the key ({_describe(error)})") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._fatal_error(f"does not respond ({_reason(error)})") from error

    def chat(self, body: Mapping[str, Any]) -> JudgeReply:
        """Send one request.

        Raises RequestRejectedError if the endpoint rejects this request only, and RewardError if it does not
        respond in any attempt or never will.
        """
        for attempt in range(self.retries + 1):
            retry_after = None
            try:
                content = self._fetch("/chat/completions", json.dumps(body).encode(), _MAX_REPLY_BYTES)
                return self._parse_reply(content)
            except urllib.error.HTTPError as error:
                cause = _describe(error)
                if error.code in FATAL_STATUSES:
                    raise self._fatal_error(f"responds {cause}") from error
                if error.code not in RETRYABLE_STATUSES:
                    raise RequestRejectedError(f"was rejected by the endpoint: {cause}") from error
                retry_after = error.headers.get("Retry-After")
            except (OSError, http.client.HTTPException) as error:
                cause = _reason(error)
            if attempt < self.retries:
                seconds = retry_wait_seconds(attempt, self.backoff_seconds, retry_after)
                if self.on_wait is not None:
                    self.on_wait(
                        f"{self.owner} at {self.url} does not answer ({cause}); attempt {attempt + 2} of "
                        f"{self.retries + 1} in {seconds:.0f} s"
                    )
                time.sleep(seconds)
        raise self._fatal_error(f"did not respond in {self.retries + 1} attempts; the last one: {cause}")

    def _fetch(self, path: str, data: bytes | None, max_bytes: int) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url.rstrip("/") + path, data=data, headers=headers)
        return fetch(request, timeout_seconds=self.timeout_seconds, max_bytes=max_bytes)

    def _parse_reply(self, content: bytes) -> JudgeReply:
        try:
            reply = parse_json(content)
            text = reply["choices"][0]["message"]["content"] or ""
            tokens = (reply.get("usage") or {}).get("total_tokens")
            if not isinstance(text, str):
                raise TypeError(f"a content of {type(text).__name__}")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise RewardError(
                f"{self.owner}'s endpoint does not speak OpenAI's protocol: its reply was {_quoted(content)}."
            ) from error
        is_count = isinstance(tokens, int) and 0 <= tokens < _MAX_REPLY_BYTES
        return JudgeReply(text.encode("utf-8", "replace").decode(), tokens if is_count else None)

    def _fatal_error(self, what: str) -> RewardError:
        return RewardError(
            f"{self.owner} at {self.url} {what}. Start it, or correct {self.keys}. The replies so far are stored, and "
            "the same command continues from the last checkpoint."
        )


def _describe(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}: {_quoted(error.read())}"


def _quoted(content: bytes) -> str:
    return repr(content.decode(errors="replace").strip()[:_MAX_QUOTE_CHARS])


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) or type(cause).__name__


def cache_key(url: str, body: Mapping[str, Any]) -> str:
    """Hash of a judge's address and a request body."""
    content = json.dumps([url, body], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class JudgeCache:
    """Table of replies in `<folder>/replies.sqlite3`. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        """Raises RewardError if the folder is not writable or the file is not a reply table."""
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(folder / _FILE, check_same_thread=False, isolation_level=None)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS replies "
                "(key TEXT PRIMARY KEY, text TEXT NOT NULL, tokens INTEGER)"
            )
        except (OSError, sqlite3.Error) as error:
            raise RewardError(
                f"The judge's replies cannot be stored in {folder}: {error}. Set reward.judge_calls.cache to "
                "another folder."
            ) from error

    def get(self, key: str) -> str | None:
        """Text of the cached reply; None if there is none."""
        with self._lock:
            row = self._database.execute("SELECT text FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, reply: JudgeReply) -> None:
        """Store a reply; it is on disk when this returns."""
        with self._lock:
            self._database.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, reply.text, reply.tokens)
            )

    def usage(self) -> tuple[int, int]:
        """Number of cached replies, and the tokens that they cost."""
        with self._lock:
            calls, tokens = self._database.execute("SELECT COUNT(*), SUM(tokens) FROM replies").fetchone()
        return calls, tokens or 0

    def close(self) -> None:
        """Close the file."""
        self._database.close()
