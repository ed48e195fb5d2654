"""Mutation sample: how many small faults in the code do the tests of CI find?

Each mutant changes one operator, constant, condition or statement of a function. It runs against the tests that
executed its block, the fastest first, until one fails; a mutant that no test finds survives. `docs/testing.md` has
the results and the commands.

    python tools/mutation.py draw --seed 1 --each 16 mutants.json
    python tools/mutation.py instrument /tmp/traced     # a copy of the tree that records which tests run which blocks
    (cd /tmp/traced && STROP_TRACE=/tmp/trace pytest -p strop_trace_plugin ...)
    python tools/mutation.py kill mutants.json /tmp/trace results.json
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

AREAS = {
    "algorithms": ["strop/algorithms"],
    "packing": ["strop/data/packing.py", "strop/models/packed_attention"],
    "log-probs": ["strop/models/logprobs.py", "strop/models/chunked_head.py", "strop/models/chunked_head.py"],
    "run/optimize": ["strop/run/optimize"],
    "buffer": ["strop/buffer"],
    "sync": ["strop/sync"],
    "run/state": ["strop/run/state"],
    "ledgers": ["strop/compat/ledger"],
    "config checks": ["strop/config/checks"],
    "rewards": ["strop/rewards"],
}
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max"}
# A mutant of these statements changes no behavior that a test should fix.
IGNORED = re.compile(r"\b(logging|logger|warnings|raise|assert|TYPE_CHECKING|overload|Protocol)\b")
FIRST = 12
"""Number of tests that are tried before all others."""
PROBE = "_strop_probe"
NOT_TRACED = ("strop/sandbox/inside", "strop/models/packed_attention/attention.py")
"""Code that is copied into a sandbox, or compiled by torch, where a probe cannot run."""


@dataclass(frozen=True)
class Mutant:
    """One change of one line; `function` and `line` find it again in another version of the file."""

    area: str
    path: str
    function: str
    line: str
    line_number: int
    column: int
    old: str
    new: str
    block: str


def block_name(path: str, statement: ast.stmt) -> str:
    return f"{path}:{statement.lineno}"


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_docstring = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body


class MutantFinder(ast.NodeVisitor):
    """All mutants of one file, with the block that each stands in."""

    def __init__(self, area: str, path: str, text: str) -> None:
        self.area, self.path = area, path
        self.lines = text.splitlines()
        self.functions: list[str] = []
        self.block: str | None = None
        self.found: list[Mutant] = []

    def visit_body(self, body: list[ast.stmt]) -> None:
        outer, statements = self.block, without_docstring(body)
        if statements and self.functions:
            self.block = block_name(self.path, statements[0])
        for statement in statements:
            self.visit(statement)
        self.block = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.functions.append(node.name)
        self.visit_body(node.body)
        self.functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.visit_body(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)
            elif isinstance(value, ast.AST):
                self.visit(value)

    def add(self, node: ast.expr | ast.stmt, new: str, old: str | None = None) -> None:
        """The mutant that writes `new` in the place of a node, if the node stands on one line of a function."""
        number = node.lineno
        line = self.lines[number - 1]
        if self.block is None or node.end_lineno != number or IGNORED.search(line) or not line.isascii():
            return
        start, end = node.col_offset, node.end_col_offset or 0
        old = line[start:end] if old is None else old
        self.found.append(
            Mutant(self.area, self.path, ".".join(self.functions), line, number, start, old, new, self.block)
        )

    def source(self, node: ast.expr) -> str:
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS and node.end_lineno == node.lineno:
            operator = COMPARISONS[type(node.ops[0])]
            self.add(node, f"{self.source(node.left)} {operator} {self.source(node.comparators[0])}")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [side for side in (node.left, node.right) if isinstance(side, ast.Constant | ast.JoinedStr)]
        is_text = any(isinstance(side, ast.JoinedStr) or isinstance(side.value, str) for side in texts)
        if type(node.op) in ARITHMETIC and node.end_lineno == node.lineno and not is_text:
            left, right = self.source(node.left), self.source(node.right)
            self.add(node, f"(({left}) {ARITHMETIC[type(node.op)]} ({right}))")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if node.end_lineno == node.lineno:
            word = " or " if isinstance(node.op, ast.And) else " and "
            self.add(node, "(" + word.join(f"({self.source(value)})" for value in node.values) + ")")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub) and node.end_lineno == node.lineno:
            self.add(node, f"({self.source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.add(node, repr(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages are no behavior."""

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            self.add(node.func, FUNCTIONS[node.func.id])
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if node.test.end_lineno == node.test.lineno:
            self.add(node.test, f"(not ({self.source(node.test)}))")
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.add(node, "return None")
        self.generic_visit(node)


def draw(root: Path, seed: int, each: int) -> list[Mutant]:
    """`each` mutants an area, no two on one line, drawn with a seed from the sorted list of all."""
    drawn: list[Mutant] = []
    for area, places in AREAS.items():
        paths = sorted(
            path
            for place in places
            for path in ([root / place] if (root / place).is_file() else (root / place).rglob("*.py"))
        )
        found: list[Mutant] = []
        for path in paths:
            text = path.read_text()
            finder = MutantFinder(area, path.relative_to(root).as_posix(), text)
            finder.visit(ast.parse(text))
            found += finder.found
        random.Random(f"{seed} {area}").shuffle(found)
        chosen: dict[tuple[str, int], Mutant] = {}
        for mutant in found:
            chosen.setdefault((mutant.path, mutant.line_number), mutant)
        drawn += list(chosen.values())[:each]
    return drawn


def locate(root: Path, mutant: Mutant) -> tuple[str, str] | None:
    """The mutated text of a mutant's file in another version of the tree, and the block; None without the line."""
    path = root / mutant.path
    if not path.is_file():
        return None
    text = path.read_text()
    finder = MutantFinder(mutant.area, mutant.path, text)
    finder.visit(ast.parse(text))
    same = [
        other
        for other in finder.found
        if (other.function, other.line, other.column, other.new)
        == (mutant.function, mutant.line, mutant.column, mutant.new)
    ]
    if not same:
        return None
    other = min(same, key=lambda one: abs(one.line_number - mutant.line_number))
    lines = text.splitlines(keepends=True)
    line = lines[other.line_number - 1]
    lines[other.line_number - 1] = line[: other.column] + other.new + line[other.column + len(other.old) :]
    mutated = "".join(lines)
    try:
        ast.parse(mutated)
    except SyntaxError:
        return None
    return mutated, other.block


class ProbeInserter(ast.NodeTransformer):
    """Calls the probe at the start of every block of every function."""

    def __init__(self, path: str) -> None:
        self.path, self.depth = path, 0

    def visit_FunctionDef(self, node: Any) -> Any:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        self.insert(node, "body")
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.depth and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            for name in ("body", "orelse", "finalbody"):
                self.insert(node, name)
        return node

    def insert(self, node: ast.AST, name: str) -> None:
        body = getattr(node, name, None)
        if not (isinstance(body, list) and body and isinstance(body[0], ast.stmt)):
            return
        statements = without_docstring(body)
        if not statements:
            return
        call = ast.parse(f"{PROBE}({block_name(self.path, statements[0])!r})").body
        setattr(node, name, [*body[: len(body) - len(statements)], *call, *statements])


PROBE_MODULE = '''
"""Records which blocks run under which test: lines "T <test>" and "<block>", one file a process."""
import os
_folder = os.environ.get("STROP_TRACE")
_seen, _file, _pid = set(), None, None

def start(test):
    global _file, _pid
    _seen.clear()
    try:
        if _pid != os.getpid():
            _pid = os.getpid()
            name = f"{_pid}-{os.urandom(4).hex()}"
            _file = os.open(os.path.join(_folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(_file, f"T {test}\\n".encode())
    except OSError:
        _file = None

def hit(block):
    if block in _seen or _folder is None:
        return
    if _pid != os.getpid():
        start(os.environ.get("PYTEST_CURRENT_TEST", "?").rsplit(" (", 1)[0])
    _seen.add(block)
    if _file is not None:
        try:
            os.write(_file, f"{block}\\n".encode())
        except OSError:
            pass
'''

PLUGIN = """
import json, os, resource, time, pytest
from strop import _probe
def used():
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime, children.ru_utime + children.ru_stime
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    _probe.start(item.nodeid)
    before, began = used(), time.monotonic()
    item.trace_outcomes = []
    yield
    after = used()
    row = {"test": item.nodeid, "wall": time.monotonic() - began, "cpu": after[0] - before[0],
           "children": after[1] - before[1], "outcomes": item.trace_outcomes,
           "markers": sorted({mark.name for mark in item.iter_markers()})}
    with open(os.path.join(os.environ["STROP_TRACE"], "tests.jsonl"), "a") as file:
        file.write(json.dumps(row) + "\\n")
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    item.trace_outcomes.append(f"{report.when}:{report.outcome}:{report.duration:.3f}")
"""


def instrument(root: Path, target: Path) -> None:
    """A copy of the tracked files in which every block calls the probe."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
    for path in (target / "strop").rglob("*.py"):
        tree = ast.parse(path.read_text())
        if not tree.body or any(path.is_relative_to(target / name) for name in NOT_TRACED):
            continue
        tree = ProbeInserter(path.relative_to(target).as_posix()).visit(tree)
        after = max(
            [
                index + 1
                for index, node in enumerate(tree.body)
                if (isinstance(node, ast.ImportFrom) and node.module == "__future__")
                or (index == 0 and without_docstring(tree.body) is not tree.body and ast.get_docstring(tree))
            ],
            default=0,
        )
        tree.body[after:after] = ast.parse(f"from strop._probe import hit as {PROBE}").body
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n")
    (target / "strop/_probe.py").write_text(PROBE_MODULE)
    (target / "strop_trace_plugin.py").write_text(PLUGIN)


def without_group(test: str) -> str:
    """The name of a test without that of its xdist group, which follows an "@"."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test


def read_trace(folder: Path) -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
    """Tests by the block that they ran, and what each test took."""
    tests = {}
    for line in (folder / "tests.jsonl").read_text().splitlines():
        row = json.loads(line)
        tests[without_group(row["test"])] = row
    covering: dict[str, set[str]] = collections.defaultdict(set)
    for path in folder.iterdir():
        if path.suffix:
            continue
        test = "?"
        for line in path.read_text(errors="replace").split("\n"):
            if line.startswith("T "):
                test = without_group(line[2:])
            elif line:
                covering[line].add(test)
    return covering, tests


def covering_tests(block: str, covering: dict[str, set[str]], tests: dict[str, dict[str, Any]]) -> list[str]:
    """Passed tests that ran a block, the fastest first."""
    passed = [
        test
        for test in covering.get(block, ())
        if test in tests and all(":passed:" in outcome for outcome in tests[test]["outcomes"])
    ]
    return sorted(passed, key=lambda test: tests[test]["wall"])


def run_tests(tree: Path, chosen: list[str], seconds: float) -> tuple[str, str]:
    """ "killed" with the failing test, "survived", or "hung"; in a fork of this process, which has loaded torch."""
    report, log = tree / "mutant-report.txt", tree / "mutant-log.txt"
    report.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(tree)
        os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        import pytest

        class FastestFirst:
            @staticmethod
            @pytest.hookimpl(trylast=True)
            def pytest_collection_modifyitems(items: list[Any]) -> None:
                items.sort(key=lambda item: chosen.index(item.nodeid) if item.nodeid in chosen else 0)

            @staticmethod
            def pytest_runtest_logreport(report: Any, path: Path = report) -> None:
                if report.failed and not path.exists():
                    path.write_text(report.nodeid)

        arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=150", *chosen]
        os._exit(int(pytest.main(arguments, plugins=[FastestFirst()])))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                return "survived", ""
            return "killed", report.read_text() if report.exists() else "tests cannot be imported"
        time.sleep(0.05)
    subprocess.run(["pkill", "-KILL", "-s", str(child)], check=False)
    os.waitpid(child, 0)
    return "hung", "time limit"


def collect(root: Path) -> set[str]:
    """Names of the tests of a tree, which may have changed since they were traced."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", ""]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, "--no-header"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    return set(done.stdout.splitlines())


def kill(root: Path, mutants: list[Mutant], trace: Path, results: Path, part: str) -> None:
    """Runs every mutant in a copy of the tree, and appends one JSON line for each to `results`."""
    covering, tests = read_trace(trace)
    collected = collect(root)
    tests = {test: row for test, row in tests.items() if test in collected}
    known = {(row["path"], row["line_number"], row["new"]) for row in map(json.loads, lines_of(results))}
    index, parts = map(int, part.split("/"))
    tree = Path(tempfile.mkdtemp(prefix="mutants-"))
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, tree / name)
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401

    for mutant in mutants[index::parts]:
        if (mutant.path, mutant.line_number, mutant.new) in known:
            continue
        place = locate(root, mutant)
        row: dict[str, Any] = asdict(mutant)
        began = time.monotonic()
        if place is None:
            row["result"] = "no such line"
        else:
            text, block = place
            chosen, total = [], 0.0
            for test in covering_tests(block, covering, tests):
                total += tests[test]["wall"]
                if total > 240 or len(chosen) == 400:
                    break
                chosen.append(test)
            row["tests"] = len(chosen)
            (tree / mutant.path).write_text(text)
            row["result"], row["by"] = "not covered", ""
            for part in (
                chosen[:FIRST],
                chosen[FIRST:],
            ):  # most mutants fall at once, and a file takes time to collect
                if part and row["result"] in ("not covered", "survived"):
                    row["result"], row["by"] = run_tests(tree, part, 300)
            shutil.copy2(root / mutant.path, tree / mutant.path)
        row["seconds"] = round(time.monotonic() - began, 1)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{row['result']:12} {mutant.path}:{mutant.line_number} {mutant.old!r} -> {mutant.new!r}",
            flush=True,
        )
    shutil.rmtree(tree, ignore_errors=True)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("draw", help="draw mutants with a seed")
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--each", type=int, default=16, help="mutants of each area")
    command.add_argument("output", type=Path)
    command = commands.add_parser("instrument", help="copy the tree, with a probe in each block")
    command.add_argument("target", type=Path)
    command = commands.add_parser("kill", help="run each mutant against the tests that ran its block")
    command.add_argument("mutants", type=Path)
    command.add_argument("trace", type=Path)
    command.add_argument("results", type=Path)
    command.add_argument("--root", type=Path, default=Path.cwd(), help="the tree whose tests run")
    command.add_argument("--part", default="0/1", help="I/N: every Nth mutant from the Ith on")
    options = parser.parse_args()
    if options.command == "draw":
        drawn = draw(Path.cwd(), options.seed, options.each)
        options.output.write_text(json.dumps([asdict(mutant) for mutant in drawn], indent=0))
        print(collections.Counter(mutant.area for mutant in drawn))
    elif options.command == "instrument":
        instrument(Path.cwd(), options.target)
    else:
        mutants = [Mutant(**row) for row in json.loads(options.mutants.read_text())]
        kill(options.root.resolve(), mutants, options.trace, options.results, options.part)


if __name__ == "__main__":
    main()
