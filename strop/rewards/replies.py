"""A judge's replies on disk, by what was asked: none is paid for twice, not even over a restart."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.errors import RewardError
from strop.rewards.endpoint import Reply

_FILE = "replies.sqlite3"


def key_of(url: str, body: Mapping[str, Any]) -> str:
    """The same for the same question to the same judge, and for no other."""
    content = json.dumps([url, body], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()


class Replies:
    """A table of replies in `<folder>/replies.sqlite3`. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        """Raises RewardError where the folder cannot be written or holds something else."""
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
                f"The judge's replies cannot be kept in {folder}: {error}. Name another folder under "
                "reward.calls.cache."
            ) from error

    def get(self, key: str) -> str | None:
        """What the judge said to this, if it was asked before."""
        with self._lock:
            row = self._database.execute("SELECT text FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply; it is on disk when this returns."""
        with self._lock:
            self._database.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", (key, reply.text, reply.tokens)
            )

    def spent(self) -> tuple[int, int]:
        """Calls that are kept here, and the tokens that they cost."""
        with self._lock:
            calls, tokens = self._database.execute("SELECT COUNT(*), SUM(tokens) FROM replies").fetchone()
        return calls, tokens or 0

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()
