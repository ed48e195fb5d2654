"""On-disk cache of judge replies, keyed by request: an answered request is paid for once, also after a restart."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.errors import RewardError
from strop.rewards.judges.chat_client import JudgeReply

_FILE = "replies.sqlite3"


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
