"""Programs that solve no task and try to pass its tests, by name; `f` is the function that the tests call."""

FORGERIES = {
    "equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return 0
    def __lt__(self, other): return True
def f(x): return Equal()""",
    "a number that is equal to everything": """
class Equal(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
def f(x): return Equal(1)""",
    "overridden functions of the tests": """
def abs(x): return 0
def all(x): return True
def f(x):
    class Equal:
        def __eq__(self, other): return False
        def __sub__(self, other): return 0
    return 4 if x == 2 else Equal()""",
    "changed builtins": """
import builtins
builtins.abs = lambda x: 0
builtins.all = lambda x: True
builtins.AssertionError = type("Quiet", (BaseException,), {})
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return self
    def __lt__(self, other): return True
def f(x): return Equal()""",
    "a line jump by a trace function": """
import sys
def trace(frame, event, argument):
    if event == 'line' and frame.f_code.co_name == 'check':
        frame.f_lineno = max(line for *_, line in frame.f_code.co_lines() if line)
        frame.f_trace = None
    return trace
def f(x):
    sys._getframe(1).f_trace = trace
    sys.settrace(trace)
    return 4""",
    "the caller's constants": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        if frame.f_code.co_name == 'check' and 'aa' in frame.f_code.co_consts: return 2 * x
        frame = frame.f_back""",
    "the caller's variables": """
import sys
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return self
    def __lt__(self, other): return True
def f(x):
    frame = sys._getframe(1)
    while frame:
        frame.f_globals['abs'] = lambda x: 0
        frame.f_globals['all'] = lambda x: True
        frame = frame.f_back
    return Equal()""",
    "an exit": "import os\nos._exit(0)\ndef f(x): pass",
    "an exit in the call": "import os\ndef f(x): os._exit(0)",
    "an exit with an exception": "def f(x): raise SystemExit(0)",
    "an exit handler": """
import atexit, os
class Equal:
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
atexit.register(os._exit, 0)
def f(x): return Equal()""",
    "a mark in the output": """
import gc, os, sys
def f(x):
    marks = [o for o in gc.get_objects() if isinstance(o, dict) and 'marker' in o]
    frame = sys._getframe()
    while frame:
        marks.append(frame.f_locals)
        frame = frame.f_back
    for each in marks:
        mark = each.get('marker')
        if mark: os.write(1, mark if isinstance(mark, bytes) else mark.encode())
    os._exit(0)""",
    "changed unittest": """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
def f(x): return 2 * x if isinstance(x, float) else None""",
    "changed modules": """
import sys, types
class Anything(types.ModuleType):
    def __getattr__(self, name): return lambda *a, **k: True
sys.modules['math'] = Anything('math')
def f(x): return 4 if x == 2 else None""",
    "further names": """
import sys
sys._getframe(1).f_locals['names'] += ['abs', 'all']
def abs(x): return 0
all = bool
def f(x): return 4 if x == 2 else 1.0""",
    "forged messages": """
import json, os, struct
def f(x):
    for descriptor in range(64):
        for message in (["return", True, None, ""], ["return", [], [[1]], ""]):
            text = json.dumps([[0], [["tuple", message]]]).encode()
            try: os.write(descriptor, len(text).to_bytes(8, 'big') + text)
            except OSError: pass""",
    "the tests' process by its number": """
import os, signal
def f(x): os.kill(os.getppid(), signal.SIGTERM)""",
}

TESTS = """
def check(candidate):
    assert candidate(2) == 4
    assert abs(candidate(3) - 6.0) < 1e-6
    assert all(candidate(n) == 2 * n for n in range(5))
    assert len('aa') == 2
"""
MODULE_TESTS = """
import math, unittest
def check(candidate):
    assert math.isclose(candidate(1.5), 3.0)
    unittest.TestCase().assertEqual(candidate(2), 4)
"""
SOLUTION = "def f(x): return 2 * x"
