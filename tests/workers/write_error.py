"""A child process that reports an error."""

from __future__ import annotations

import os
import sys

with os.fdopen(int(sys.argv[1]), "w") as file:
    file.write("what went wrong")
sys.exit(5)
