"""Program that runs a command, and ends it with all its descendants when the thread that started it ends.

python -m strop.workers.supervised_command COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import os
import sys

from strop.workers.supervision import run_supervised


def main() -> None:
    """Run the command; exits with its code."""
    run_supervised(_execute)


def _execute() -> None:
    command = sys.argv[1:]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}.")


if __name__ == "__main__":
    main()
