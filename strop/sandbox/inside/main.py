"""The sandboxed process: it confines itself, runs one program, and marks the program's end on its output.

Standard input has, one after the other: the length of the settings in 8 digits, the settings as JSON, the
program, and the program's own input.
"""

from __future__ import annotations

import json
import os
import sys

from .confinement import confine


def main() -> None:
    """Run the program. The first line of the output is the marker and the isolation level; if the program runs
    to its last line without an exception, the marker follows its output."""
    settings = json.loads(read(int(read(8))))
    source = read(settings["source_bytes"])
    marker, write = settings["marker"].encode(), os.write
    write(1, marker + b" " + confine(settings).encode() + b"\n")
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001  (the program may raise anything)
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace else None  # without this function's frame
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.stdout.flush()
    write(1, marker)


def read(count: int) -> bytes:
    """Read exactly `count` bytes of the standard input; what follows is left for the program."""
    parts = []
    while count:
        part = os.read(0, count)
        if not part:
            sys.exit("the input has ended early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
