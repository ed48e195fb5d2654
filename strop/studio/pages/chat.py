"""Page that talks with the model of a run, which `strop chat --json` samples in a process of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.studio.pages.run_view import common_values
from strop.studio.rendering import html
from strop.studio.requests import folder_named, json_action, run_path, text_in
from strop.workers.json_text import parse_json

_ERROR_BYTES = 4000


class _Conversation:
    """One conversation; its process ends with its standard input, so with Studio too."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.arguments = arguments
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the conversation)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "strop", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def ask(self, message: str) -> str:
        """The answer of the model. Raises `RunFolderError` if the process has ended, or answers with no JSON."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return str(parse_json(self._process.stdout.readline()))
        except (OSError, ValueError):
            self._process.terminate()  # which has ended, unless something else has written on its standard output
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read(_ERROR_BYTES).decode("utf-8", "replace").strip()
            raise RunFolderError(said or "The conversation has ended.") from None

    def end(self) -> None:
        """End the process."""
        self._process.terminate()


_lock = threading.Lock()
"""Held during an answer: there is one conversation, because each has a model in memory."""
_current: list[_Conversation] = []


def page(request: Request) -> Response:
    """The page, with an empty conversation."""
    return html("run_chat", **common_values(request, run_path(request), "chat"))


def say(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """The model's answer to a message, after those before it; the first one loads the model, once it is confirmed."""
    path = folder_named(request, text_in(values, "run"))
    arguments = _arguments(path, is_before=bool(values.get("before")))
    is_new = values.get("is_new") is True
    if is_new and values.get("confirmed") is not True:
        command = f"strop {shlex.join(arguments)}"
        return {"question": f"Run `{command}`? It loads the model, and the code that the run's files name."}
    with _lock:
        if is_new:
            _end()
            _current.append(_Conversation(arguments))
        if not _current or _current[0].arguments != arguments:
            raise RunFolderError("This conversation has ended; begin a new one.")
        return {"answer": _current[0].ask(text_in(values, "message"))}


def end(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """End the conversation, also while it answers."""
    _end()
    return {"message": "The model has been unloaded."}


def _end() -> None:
    while _current:
        _current.pop().end()


def _arguments(path: Path, *, is_before: bool) -> tuple[str, ...]:
    return ("chat", str(path), "--json", *(["--before"] if is_before else []))


ROUTES = [
    Route("/run/chat", page),
    Route("/run/say", json_action(say), methods=["POST"]),
    Route("/run/end-chat", json_action(end), methods=["POST"]),
]
