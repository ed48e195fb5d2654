"""Entry point of the `strop` command."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import signal
import sys


def main() -> None:
    """Run the command line; an interrupt (Ctrl-C) prints one line, also while modules are being imported."""
    # An interpreter that ends searches all objects for garbage: half a million with torch and transformers, two
    # seconds.
    atexit.register(gc.freeze)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # as stderr: a character beyond the locale is no error
    if sys.getfilesystemencoding() != "utf-8":
        print(
            f"strop: File names are {sys.getfilesystemencoding()} in this environment, so that a name with characters "
            "beyond it is not found. Set PYTHONUTF8=1.",
            file=sys.stderr,
        )
    try:
        from strop.cli.main import app
        from strop.workers.output import OutputError, reported_output

        try:
            with reported_output():
                app()
        except OutputError as error:
            if error.errno != errno.EPIPE:  # the reader of the pipe has read enough
                print(f"strop: The output cannot be written: {error.strerror}.", file=sys.stderr)
            sys.exit(1)
    except ImportError as error:
        if "failed to map segment" not in str(error):
            raise
        print(
            f"strop: A library could not be loaded for lack of memory ({error}). The limit of this process's address "
            "space (`ulimit -v`) is too small for it; raise it, or write `ulimit -v unlimited`.",
            file=sys.stderr,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        # A second interrupt ends the process at once, if a thread delays its exit.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("strop: Interrupted.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
