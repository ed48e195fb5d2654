"""Workflows by name: built in, or of the user's own."""

import pytest

from strop.errors import ConfigError
from strop.workflows.single_turn import SingleTurn
from strop.workflows.table import make_workflow


def test_the_built_in_one():
    assert isinstance(make_workflow("single_turn", None, None), SingleTurn)


def test_a_class_in_a_file_of_the_users_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n"
        "    def __init__(self, engine, tokenizer):\n"
        "        self.engine, self.tokenizer = engine, tokenizer\n"
        "    async def run(self, task, group, index, sampling, seed):\n"
        "        raise NotImplementedError\n"
        "def not_one(engine, tokenizer):\n"
        "    return 3\n"
    )
    workflow = make_workflow(f"{file}:Mine", "engine", "tokenizer")
    assert (workflow.engine, workflow.tokenizer) == ("engine", "tokenizer")
    with pytest.raises(ConfigError, match="gives a int, which has no method `run`"):
        make_workflow(f"{file}:not_one", None, None)
    with pytest.raises(ConfigError, match="Did you mean 'Mine'"):
        make_workflow(f"{file}:Mien", None, None)


def test_a_misspelt_name_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'single_turn'"):
        make_workflow("single_trun", None, None)
