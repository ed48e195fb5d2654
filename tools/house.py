"""Prints the size and grain of the package: `make house`.

    python tools/house.py

The last rows are measured: what reading a command of verl enters, and what training a run file imports.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PACKAGE = ROOT / "strop"
OVERRIDES = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=train.parquet",
    "data.val_files=test.parquet",
    "data.train_batch_size=64",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.rollout.n=4",
    "trainer.total_epochs=2",
)
"""A short command of verl."""
_ENTERED = f"""
import sys, json
from strop.compat.verl.ppo_trainer import read_verl
read_verl({OVERRIDES!r}, here=True)  # imports what is imported late
files = set()
def enter(frame, event, argument):
    code = frame.f_code
    if event == "call" and "/strop/" in code.co_filename and code.co_name != "<module>":
        files.add(code.co_filename)
sys.setprofile(enter)
read_verl({OVERRIDES!r}, here=True)
sys.setprofile(None)
print(json.dumps([len(files)]))
"""
_IMPORTED = """
import sys, json, atexit
from strop.cli.main import app
def count():
    names = [name for name in sys.modules if name.startswith("strop.")]
    print(json.dumps([len(names), sum(name.startswith("strop.compat") for name in names)]))
atexit.register(count)
app(["train", sys.argv[1], "trainer.duration=1 steps"])
"""


def _lines(files: list[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _imported(nodes: Iterator[ast.Import | ast.ImportFrom]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _called_once(trees: list[ast.Module]) -> tuple[int, int]:
    """Private functions and methods that one place of their module names, and all functions and methods."""
    once = every = 0
    for tree in trees:
        nodes = list(ast.walk(tree))
        names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        names.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
        functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        every += len(functions)
        once += sum(names[name] == 1 for name in functions if name.startswith("_") and name[:2] != "__")
    return once, every


def _run(code: str, *arguments: str | Path, **variables: str) -> list[int]:
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=variables.get("QUICKSTART", ROOT),
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(found.stderr)
    numbers: list[int] = json.loads(found.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    """Print the table."""
    from benchmarks import startup

    files = sorted(PACKAGE.rglob("*.py"))
    compat = [file for file in files if PACKAGE / "compat" in file.parents]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    total, in_compat = _lines(files), _lines(compat)
    importing = sum((node.end_lineno or 0) - node.lineno + 1 for tree in trees for node in _imports(tree))
    known = {_module(file) for file in files}
    importers = Counter(name for tree in trees for name in set(_imported(_imports(tree))) if name in known)
    once, functions = _called_once(trees)
    with tempfile.TemporaryDirectory() as folder:
        startup.prepare(Path(folder))
        modules, foreign = _run(_IMPORTED, startup.QUICKSTART, QUICKSTART=folder, OMP_NUM_THREADS="1")
    rows = {
        "lines of strop": total,
        "lines of its core": total - in_compat,
        "lines for other tools (strop/compat)": in_compat,
        "files of strop": len(files),
        "files for other tools": len(compat),
        "lines of the median file": int(statistics.median(_lines([file]) for file in files)),
        "lines that import": f"{importing / total:.1%}",
        "functions that are private and used in one place": f"{once / functions:.1%}",
        "modules that one module imports": sum(importers[name] == 1 for name in known),
        "modules of strop imported by a run file's first step": modules,
        "modules of strop/compat among them": foreign,
        "files entered to read nine overrides of verl": _run(_ENTERED)[0],
    }
    for name, value in rows.items():
        print(f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |")


if __name__ == "__main__":
    main()
