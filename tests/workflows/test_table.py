"""Workflows by name: built in, or of the user's own; a class or a function."""

import pytest

from strop.config.schema.workflow import Workflow
from strop.errors import ConfigError
from strop.workflows.table import BUILT_IN, load_workflow

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


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name not in ("environment", "agent")])
def test_the_built_in_ones_run_in_the_event_loop(name):
    assert load_workflow(Workflow(name=name)).is_async


def test_a_class_or_a_function_in_a_file_of_the_users_own(user_file):
    file = user_file(MINE)
    mine = load_workflow(Workflow(name=f"{file}:Mine", args={"times": 3}))
    assert mine.is_async
    assert mine.function.__self__.times == 3
    plain = load_workflow(Workflow(name=f"{file}:plain", args={"bonus": 0.5}))
    assert not plain.is_async
    assert plain.function("task", "chat") == 0.5
    assert load_workflow(Workflow(name=f"{file}:modern")).is_async


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("Mien", {}, "Did you mean 'Mine'"),
        ("Mine", {"tims": 3}, r"unexpected keyword argument 'tims'.*these can be times\."),
        ("Lame", {}, "the class Lame has no method `run`"),
        ("alone", {}, "too many positional arguments. It is called with task and chat"),
        ("plain", {"bonos": 1}, "unexpected keyword argument 'bonos'"),
    ],
)
def test_what_does_not_fit_is_refused(user_file, name, args, words):
    with pytest.raises(ConfigError, match=words):
        load_workflow(Workflow(name=f"{user_file(MINE)}:{name}", args=args))


def test_a_misspelt_name_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'single_turn'"):
        load_workflow(Workflow(name="single_trun"))


def test_what_a_class_makes_of_its_args_is_said():
    with pytest.raises(ConfigError, match="max_turns is 0; write 1 or more"):
        load_workflow(Workflow(name="tools", args={"max_turns": 0}))
