"""Add another virtual environment, and folders of modules, to the path of this interpreter's environment.

    .venv-sglang/bin/python tools/layer_environment.py .venv-vllm tests/inference/sglang_stubs

This environment's own packages come first.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Write the file that adds the paths."""
    environment, *folders = (Path(argument).resolve() for argument in sys.argv[1:])
    own = Path(sysconfig.get_path("purelib")).resolve()
    layer = environment / own.relative_to(Path(sys.prefix).resolve())
    lines = [str(path) for path in (layer, *folders)]
    (own / "layer.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
