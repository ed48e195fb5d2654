"""Loading of workflows by name: built-in and user ones, classes and functions."""

import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.registry import BUILTIN_WORKFLOWS, load_workflow

MINE = """
class Mine:
    def __init__(self, times=1):
        self.times = times
    async def run(self, task, chat):
        return float(self.times)

class Lame:
    pass

def plain(task, chat, bonus=0.0):
    return bonus

async def modern(task, chat):
    return None

def alone():
    return 1
"""


@pytest.mark.parametrize(
    "name",
    [n for n in BUILTIN_WORKFLOWS if n not in ("environment", "agent", "openenv", "trinity", "verifiers")],
)
def test_builtin_workflows_run_in_the_event_loop(name):
    assert load_workflow(WorkflowConfig(name=name)).is_async


def test_class_or_function_in_a_user_file(user_file):
    file = user_file(MINE)
    mine = load_workflow(WorkflowConfig(name=f"{file}:Mine", args={"times": 3}))
    assert mine.is_async
    assert mine.function.__self__.times == 3
    plain = load_workflow(WorkflowConfig(name=f"{file}:plain", args={"bonus": 0.5}))
    assert not plain.is_async
    assert plain.function("task", "chat") == 0.5
    assert load_workflow(WorkflowConfig(name=f"{file}:modern")).is_async


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("FILE:Mien", {}, "Did you mean 'Mine'"),
        ("FILE:Mine", {"tims": 3}, r"unexpected keyword argument 'tims'.*Supported args: times\."),
        ("FILE:Lame", {}, "the class Lame has no method `run`"),
        (
            "FILE:alone",
            {},
            "too many positional arguments. A function, or the method `run` of a class, is called",
        ),
        ("FILE:plain", {"bonos": 1}, "unexpected keyword argument 'bonos'"),
        ("single_trun", {}, "did you mean 'single_turn'"),
        ("tools", {"max_turns": 0}, "max_turns is 0; write 1 or more"),
    ],
)
def test_invalid_workflows_are_rejected(user_file, name, args, words):
    name = name.replace("FILE", str(user_file(MINE)))
    with pytest.raises(ConfigError, match=words):
        load_workflow(WorkflowConfig(name=name, args=args))
