"""Forged passes of the reward `code`: the tests run in a process that has none of the program's code."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from strop.rewards.builtin.code import code_reward, separated
from strop.sandbox.inside.tests_process import _Tests
from tests.rewards.forgeries import FORGERIES, MODULE_TESTS, SOLUTION, TESTS
from tests.rewards.isolation import SANDBOX, needs_isolation  # noqa: F401  (a fixture of this module)


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_get_nothing(name):
    program = f"```python\n{FORGERIES[name]}\n```"
    assert [code_reward(program, tests, (), "f", sandbox=SANDBOX) for tests in (TESTS, MODULE_TESTS)] == [
        0.0,
        0.0,
    ]


def test_the_solution_passes():
    assert code_reward(f"```python\n{SOLUTION}\n```", TESTS, (), "f", sandbox=SANDBOX) == 1.0


CLASSES = (
    "class Point:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\n"
)


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(): return (1, [2.5, {3}], {'a': (None, True)}, b'x', 1j, 2**100)",
         "assert f() == (1, [2.5, {3}], {'a': (None, True)}, b'x', 1j, 2**100)"),
        ("def f(n):\n    x = []\n    for _ in range(n): x = [x]\n    return x",
         "x = f(5000)\nwhile x: x = x[0]\nassert x == []"),
        ("def f():\n    x = [1]\n    x.append(x)\n    return x", "x = f(); assert x[1] is x"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2] and 2 in f(3) and next(f(1)) == 0"),
        ("def f(x): x.sort()", "x = [2, 1]; f(x); assert x == [1, 2]"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x + 1, 1) == 3 and f(abs, -1) == 1"),
        ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
        ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
         "try: f(-1)\nexcept ValueError as e: assert str(e) == 'negative'\nelse: assert False"),
        ("class Bad(KeyError): pass\ndef f(): raise Bad(1)",
         "try: f()\nexcept Bad: pass\nelse: assert False\ntry: f()\nexcept LookupError: pass"),
        ("class Node:\n    def __init__(self, v): self.v = v; self.left = None\n    def __len__(self): return 7\n"
         "def depth(n): return 0 if n is None else 1 + depth(n.left)",
         "n = Node(1); n.left = Node(2); assert depth(n) == 2 and n.left.v == 2 and len(n) == 7"
         " and isinstance(n, Node) and not isinstance(3, Node)"),
        (f"{CLASSES}def f(p): return Point(p.x + 1)", f"{CLASSES}assert f(Point(1)) == Point(2)"),
        ("class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
         "    def __lt__(self, o): return self.x < o.x\n    def __enter__(self): return self.x\n"
         "    def __exit__(self, *e): self.x = 0\n    def __abs__(self): return abs(self.x)",
         "assert (V(1) + V(2)).x == 3 and sorted([V(2), V(1)])[0].x == 1 and abs(V(-1)) == 1\n"
         "v = V(5)\nwith v as x: assert x == 5\nassert v.x == 0"),
        ("class Solution:\n    def f(self, x): return x + 1", "assert Solution().f(1) == 2"),
        ("def sum(a, b): return a - b", "assert sum(10, 15) == -5"),
        ("def f(x): return x / 2", "assert math.isclose(f(3), 1.5) and np.allclose(f(1), 0.5)"),
        ("import numpy\ndef f(): return numpy.arange(3) * 1.5",
         "assert (f() == [0, 1.5, 3]).all() and f().shape == (3,)"),
        ("import collections, datetime, decimal, fractions\n"
         "def f(): return collections.Counter('aab'), datetime.date(2020, 1, 2), decimal.Decimal('1.5'),"
         " fractions.Fraction(1, 3), datetime.timedelta(1), collections.deque([1]), range(2), int",
         "import collections, datetime, decimal, fractions\n"
         "assert f() == ({'a': 2, 'b': 1}, datetime.date(2020, 1, 2), decimal.Decimal('1.5'),"
         " fractions.Fraction(1, 3), datetime.timedelta(1), collections.deque([1]), range(2), int)"),
        ("class Count:\n    def __init__(self): self.n = 0\n    def __iter__(self): return self\n"
         "    def __next__(self):\n        if self.n == 2: raise StopIteration\n        self.n += 1; return self.n",
         "c = Count(); assert next(c) == 1 and list(c) == [2] and next(c, None) is None"),
        ("def f(): print('shown')",
         "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out: f()\n"
         "assert out.getvalue() == 'shown\\n'"),
    ],
)  # fmt: skip
def test_what_tests_may_do_with_a_program(program, test):
    assert code_reward(program, test, sandbox=SANDBOX) == 1.0


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("class P:\n    def __eq__(self, o): return True\ndef f(): return P()", "assert f() == 1"),
        ("class P:\n    def __contains__(self, o): return True\n    def __iter__(self): return iter([])\n"
         "def f(): return P()", "assert 1 in f()"),
        ("class Point:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return True\n"
         "def f(): return Point(1)", f"{CLASSES}assert f() == Point(2)"),
        ("class Point: pass\ndef f():\n    p = Point()\n    p.is_two = lambda: True\n    return p",
         "class Point:\n    def is_two(self): return False\nassert f().is_two()"),
        ("class V:\n    def __sub__(self, o): return 0\n    __rsub__ = __lt__ = __sub__\ndef f(): return V()",
         "assert f() - 3 == 0 or 3 - f() == 0 or not f() < 3"),
        ("def poly(x): return 0\ndef f(x): return 5", "def poly(x): return x\nassert poly(f(1)) == 0"),
        ("import math\nmath.isclose = lambda *a: True\ndef f(): return 1", "assert math.isclose(f(), 2)"),
        ("def f(x):\n    x.clear()\n    return []", "x = [1, 2]\nassert f(x) == x"),
        ("def f(): raise SystemExit", "try: f()\nexcept Exception: pass"),
        ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == 2 * x, [1, 2]))"),
        ("class End(StopIteration): pass\ndef f(x): raise End", "for x, y in zip([1], map(f, [1])): assert y == 2"),
    ],
)  # fmt: skip
def test_what_a_program_cannot_decide(program, test):
    assert code_reward(program, test, sandbox=SANDBOX) == 0.0


@pytest.mark.parametrize(
    ("program", "tests", "options", "names"),
    [
        ("", "assert f(g(1)) == abs(2)", {}, {"f", "g"}),
        ("", "def check(candidate):\n    x = [h(i) for i in range(3)]\n", {"entry_point": "f"}, {"f", "h"}),
        ("", "check(f)", {"shared": "def f(x):\n    '''x'''\ndef check(f): assert f(1)", "entry_point": "f"}, {"f"}),
        ("", "def check(f): pass\ncheck(sum)", {"entry_point": "sum"}, {"sum"}),
        ("", "assert Solution().f(1)", {"entry_point": "Solution().f"}, {"Solution"}),
        ("def sum(a): pass\ndef abs(a): pass", "assert abs(sum(1)) == 2", {}, {"sum"}),
        ("", "assert math.sqrt(f(1)) == np.pi", {}, {"f"}),
        ("", "assert copy(1) == 1", {}, {"copy"}),
        ("", "no Python", {}, set()),
    ],
)  # fmt: skip
def test_names_that_tests_take_from_a_program(program, tests, options, names):
    assert set(separated(program, tests, **options).tests.names) == names


@pytest.mark.parametrize(
    "node",
    [
        ["object", "MagicMock", [0]],
        ["class", "print"],
        ["class", "nothing"],
        ["yours", 0],
        ["mine", "x", None],
        ["", 0],
    ],
    ids=str,
)
def test_messages_build_only_values_and_objects_of_the_tests(node):
    peer = _Tests(0, 1, ["Point"])
    peer.names = {"MagicMock": MagicMock, "Point": type("Point", (), {})}
    assert type(peer.build(["object", "Point", [0]])[0]) is peer.names["Point"]
    with pytest.raises((ValueError, AttributeError, IndexError)):
        peer.build(node)
