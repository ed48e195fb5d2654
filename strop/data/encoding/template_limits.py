"""Limits of chat templates, which are programs of a model's author or of the user: what they contain, how long they
run, how much memory they take, and how long a text they may give."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strop.printable import shorten

MAX_SECONDS = 2.0
"""Maximum CPU time of one rendering."""
MAX_CHARACTERS = 4_000_000
"""Maximum length of a prompt or a conversation, about a million tokens, which takes 3 s to tokenize."""
_MAX_GROWTH = 1 << 30
"""Maximum memory, in bytes, by which the process grows while one rendering computes."""
_MAX_NUMBER = 10_000_000
"""Maximum number with which a template computes: times that it repeats a text, width to which it fills one."""
_WIDTH = re.compile(r"[%:.][-+#<>=^,_]{0,8}([0-9]{8,})")
"""A width or precision in a text for `%` or `format`."""
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
"""Time after which the exception is raised once more, in a template that has caught it. Raised sooner, it would reach
code that handles the first one, outside of the rendering."""
_ORDINARY_SECONDS = 0.1
"""CPU time up to which the growth of the process is not a rendering's: an ordinary one takes milliseconds, and another
thread may be loading a model meanwhile."""
_UNTIL_RAISED = 1000
"""Repetitions of an empty loop, in the first of which an exception that was raised in this thread reaches it."""
_STATM = Path("/proc/self/statm")


class TemplateTimeout(Exception):
    """A template has run for longer than it may, or has taken more memory."""


def template_fault(template: str) -> str | None:
    """Fault of a template that is found before it is rendered: its syntax, or a power or a number of too many digits,
    with which one operation takes hours or all memory; None if it can be rendered."""
    from jinja2 import TemplateError, nodes
    from transformers.utils import chat_template_utils

    compiled = chat_template_utils._compile_jinja_template
    try:
        tree = compiled("").environment.parse(template)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        return f"{error}{'' if line is None else f' (line {line})'}"
    except (RecursionError, ValueError) as error:  # too deep, or a number of too many digits
        return f"{type(error).__name__}: {error}"
    if (power := tree.find(nodes.Pow)) is not None:
        return f"it computes a power (`**`, line {power.lineno}), which no chat template needs"
    for operation in tree.find_all((nodes.Mul, nodes.Mod, nodes.Call, nodes.Filter)):
        for constant in operation.find_all(nodes.Const):
            if (number := _large_number(constant.value)) is not None:
                return (
                    f"it computes with the number {shorten(number)} (line {constant.lineno}), with which one operation "
                    "can take all memory, and which no chat template needs"
                )
    return None


def _large_number(value: object) -> str | None:
    """A constant beyond `_MAX_NUMBER`, also as the width in a text that formats (`'%99999999d'`)."""
    if isinstance(value, int | float):
        return None if abs(value) <= _MAX_NUMBER else repr(value)
    widths = _WIDTH.findall(value) if isinstance(value, str) else []
    return next((width for width in widths if int(width[:20]) > _MAX_NUMBER), None)


@contextmanager
def limited_rendering(seconds: float = MAX_SECONDS) -> Iterator[None]:
    """Raise TemplateTimeout in this thread when it has computed in the block for longer than `seconds` of CPU time."""
    thread, watch = threading.get_ident(), _watch
    with watch.lock:
        watch.renderings[thread] = _Rendering(_cpu_seconds(thread), seconds)
        watch.start()
    try:
        try:
            yield
        finally:
            watch.end(thread)
    except TemplateTimeout:
        watch.end(thread)  # it may have reached this thread while that ended the watching
        raise TemplateTimeout(
            f"it has run for more than {seconds:g} s of CPU time, or taken {_MAX_GROWTH >> 30} GiB of memory"
        ) from None


@dataclass(slots=True)
class _Rendering:
    """The rendering of a thread."""

    start: float
    """CPU time of the thread at its start."""
    limit: float
    """CPU time that it may take."""
    memory: int | None = None
    """Memory of the process when it was first looked at."""
    stopped_at: float | None = None
    """Time at which the exception was raised in the thread."""

    def is_beyond(self, cpu_seconds: float, memory: int) -> bool:
        """Whether it is beyond a limit, at this CPU time of its thread and this memory of the process."""
        if self.memory is None:
            self.memory = memory
        taken = cpu_seconds - self.start
        return taken > self.limit or (taken > _ORDINARY_SECONDS and memory > self.memory + _MAX_GROWTH)


class _Watch:
    """One thread that looks at the renderings of all others, while there are any."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.renderings: dict[int, _Rendering] = {}
        """By the number of the thread."""
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look at the renderings; under the lock."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="template-limits", daemon=True)
            self._thread.start()

    def end(self, thread: int) -> None:
        """Forget the rendering of the calling thread, with an exception that has not reached it yet."""
        with self.lock:
            rendering = self.renderings.pop(thread, None)
        if rendering is not None and rendering.stopped_at is not None:
            with contextlib.suppress(TemplateTimeout):
                # Replaces the one that was raised. Taken back with NULL instead, Python 3.11 goes on to look for it at
                # each call, in which a thread with a debugger, a profiler or coverage never gets any further.
                _raise_in(thread)
                for _ in range(_UNTIL_RAISED):
                    pass

    def _run(self) -> None:
        while self._wanted.wait():
            time.sleep(_POLL_SECONDS)
            with self.lock:
                if not self.renderings:
                    self._wanted.clear()
                for thread, rendering in self.renderings.items():
                    now = time.monotonic()
                    if rendering.stopped_at is not None and now < rendering.stopped_at + _AGAIN_SECONDS:
                        continue
                    if rendering.is_beyond(_cpu_seconds(thread), _memory()):
                        rendering.stopped_at = now
                        _raise_in(thread)


def _raise_in(thread: int) -> None:
    """Raise TemplateTimeout in a thread, when it executes its next instructions."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TemplateTimeout))


def _cpu_seconds(thread: int) -> float:
    """CPU time of a running thread; where the system has no such clock, the time."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


_watch = _Watch()


def _memory() -> int:
    """Resident memory of this process in bytes; 0 on a system without `/proc`."""
    try:
        return int(_STATM.read_bytes().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _forget() -> None:
    """Start again without threads in a process that was forked, which has its own only."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_forget)
