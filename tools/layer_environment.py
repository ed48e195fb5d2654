"""Add other virtual environments, and folders of modules, to the path of this interpreter's environment.

    .venv-sglang/bin/python tools/layer_environment.py .venv-vllm tests/inference/sglang_stubs

This environment's own packages come first. The .pth files of each folder are read too.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Write the file that adds the paths."""
    own = Path(sysconfig.get_path("purelib")).resolve()
    packages = own.relative_to(Path(sys.prefix).resolve())
    folders = [Path(argument).resolve() for argument in sys.argv[1:]]
    paths = [folder / packages if (folder / "pyvenv.cfg").exists() else folder for folder in folders]
    lines = [f"import site; site.addsitedir({str(path)!r})" for path in paths]
    (own / "layer.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
