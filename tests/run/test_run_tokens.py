"""Tokens of a run: the end of a response, and the smallest embedding that reads the policy's tokens."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from strop.config.schema import Run
from strop.errors import ModelError
from strop.run.tokenizer import load_policy_tokens, load_training_tokens

TOKENIZER = SimpleNamespace(eos_token_id=1, name_or_path="m")
"""All that is read of the tokenizer here."""


@pytest.fixture
def run(tmp_path):
    """A function that gives a run with a policy and, for each size of an embedding, a teacher; None: an absent one."""

    def run(*sizes):
        teachers = []
        for name, size in enumerate((400, *sizes)):
            folder = tmp_path / str(name)
            if size is not None:
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps({"vocab_size": size, "eos_token_id": 2}))
            teachers.append({"path": str(folder), "sources": [str(name)]})
        (policy, *teachers) = teachers
        algorithm = {"type": "distillation", "distillation": {"loss": {}, "teachers": teachers}}
        values = {
            "model": {"path": policy["path"]},
            "data": {"train": {"path": "t.jsonl", "source": "s"}},
            "algorithm": algorithm if teachers else {"type": "grpo"},
            "rollout": {"sampling": {"stop_token_ids": [7]}},
            "reward": "exact",
        }
        return Run.model_validate(values)

    return run


@pytest.mark.parametrize(("sizes", "smallest"), [((), 400), ((500,), 400), ((500, 300), 300)])
def test_training_needs_a_row_in_each_embedding(run, sizes, smallest):
    tokens = load_training_tokens(run(*sizes), TOKENIZER)
    assert (tokens.vocab_size, tokens.end_ids) == (smallest, {1, 2, 7})


def test_evaluation_reads_the_policy_alone(run):
    absent = run(None)
    assert load_policy_tokens(absent, TOKENIZER).vocab_size == 400
    assert load_training_tokens(absent, TOKENIZER, only_local=True).vocab_size == 400
    with pytest.raises(ModelError, match="there is no folder"):
        load_training_tokens(absent, TOKENIZER)
