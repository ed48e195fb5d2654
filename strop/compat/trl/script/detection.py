"""Detection of Python scripts and notebooks that train with TRL or unsloth, by their imports, without running them."""

from __future__ import annotations

import ast
from pathlib import Path

from strop.compat.trl.script.notebook import read_code_cells
from strop.config.load.yaml_file import read_bounded
from strop.errors import ConfigError

PACKAGES = ("trl", "unsloth")
NOTEBOOK = ".ipynb"


def is_trl_script(path: Path) -> bool:
    """Whether a Python file or notebook imports TRL or unsloth. Raises ConfigError for one that is not Python."""
    if path.suffix == NOTEBOOK:
        sources = {cell.file_name(path): cell.source for cell in read_code_cells(path)}
    else:
        sources = {str(path): read_bounded(path)}
    try:
        modules = [ast.parse(source, name) for name, source in sources.items()]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not a Python script: {error}.") from None
    nodes = (node for module in modules for node in ast.walk(module))
    return any(name.partition(".")[0] in PACKAGES for node in nodes for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []
