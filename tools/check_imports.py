"""Check that no modules of the package import each other in a cycle, imports inside functions included.

    python tools/check_imports.py

Imports under `if TYPE_CHECKING` are ignored, because they do not run. An import at the start of a module also imports
the packages that the other module is in, and what their `__init__.py` imports. `ALLOWED` lists the imports that may
close a cycle, each with its reason. Prints every cycle as a list of `file:line -> module` and exits with 1 if there is
any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "strop"

ALLOWED: dict[tuple[str, str], str] = {}
"""Reason for every allowed import, by importing and imported module."""

Graph = Mapping[str, Mapping[str, int]]
"""Line of the first import, by importing and imported module."""


def module_files(root: Path) -> dict[str, Path]:
    """Map the dotted name of every module of the package to its file."""
    files = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported(node: ast.Import | ast.ImportFrom, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif node.module in modules:
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            yield submodule if submodule in modules else node.module


def packages_of(name: str) -> list[str]:
    """The packages that a module or package is in."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def runtime_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements below a node, without those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for branch in child.orelse:
                yield from runtime_imports(branch)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        else:
            yield from runtime_imports(child)


def import_graph(root: Path) -> dict[str, dict[str, int]]:
    """Read the imports of every module."""
    modules = module_files(root)
    graph: dict[str, dict[str, int]] = {name: {} for name in modules}
    for name, path in modules.items():
        around = {name, *packages_of(name)}
        for statement in runtime_imports(ast.parse(path.read_text(encoding="utf-8"))):
            for target in imported(statement, modules):
                first = statement.col_offset == 0  # those inside functions find the packages imported
                for each in [target, *(set(packages_of(target)) - around if first else ())]:
                    if each != name and (name, each) not in ALLOWED:
                        graph[name].setdefault(each, statement.lineno)
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Find one shortest cycle through each module that is part of any, every set of modules once."""
    found: dict[frozenset[str], list[str]] = {}
    for start in graph:
        path = shortest_path_back(graph, start)
        if path:
            found.setdefault(frozenset(path), path)
    return sorted(found.values(), key=lambda path: (len(path), path))


def shortest_path_back(graph: Graph, start: str) -> list[str]:
    """Find the shortest import path from a module back to itself; empty if there is none."""
    previous: dict[str, str] = {}
    queue = [start]
    for name in queue:
        for target in graph[name]:
            if target == start:
                path = [name]
                while path[-1] != start:
                    path.append(previous[path[-1]])
                return path[::-1]
            if target not in previous:
                previous[target] = name
                queue.append(target)
    return []


def main() -> int:
    """Print the cycles of the package."""
    graph, files = import_graph(ROOT), module_files(ROOT)
    found = cycles(graph)
    for path in found:
        print(f"import cycle of {len(path)} modules:")
        for name, target in zip(path, [*path[1:], path[0]], strict=True):
            print(f"  {files[name].relative_to(ROOT)}:{graph[name][target]} -> {target}")
    if found:
        print(f"{len(found)} import cycles. Move the shared code into a module that both import.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
