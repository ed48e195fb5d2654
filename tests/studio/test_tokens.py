"""Sampled tokens in rollout files, and their colors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strop.run.optimize.policy_optimizer import UpdateResult
from strop.runs.folder import RunFolder
from strop.runs.reader import RunData
from strop.runs.rollout_file import read_rollouts, rollout_path, write_rollouts
from strop.studio.conversation import shown_tokens
from strop.types import Experience
from tests.report.run_folders import group

ROW = {"token_ids": [5, 6, 7], "token_logprobs": [0.0, -2.5, -9.0], "token_advantages": [1.0, -0.5, 0.0]}


def experience(turn: int, mask: list[bool]) -> Experience:
    zeros = np.zeros(len(mask), np.float32)
    return Experience(
        "e", "t", "g", 1, turn, zeros.astype(np.int32), np.array(mask), zeros, None, 0.0, "ok", 1.0, (0,)
    )


def test_advantages_of_a_rollout_are_those_of_its_turns_in_their_order() -> None:
    experiences = [experience(1, [False, True, True]), experience(0, [False, False, True])]
    advantages = [np.array([9, 2, 3], np.float32), np.array([9, 9, 1], np.float32)]
    found = UpdateResult(1, {}, experiences, advantages).rollout_advantages()
    assert {key: values.tolist() for key, values in found.items()} == {("g", 1): [1.0, 2.0, 3.0]}


def test_file_has_tokens_only_where_they_are_recorded(tmp_path: Path) -> None:
    made = group(0, ["a", "b"], [1.0, 0.0])
    turn = replace(made.rollouts[0].turns[0], sampler_logprobs=np.array([-0.5, -1.0], np.float32))
    made = replace(made, rollouts=(replace(made.rollouts[0], turns=(turn, turn)), made.rollouts[1]))
    path = rollout_path(RunFolder(tmp_path).rollouts, 1)
    write_rollouts(path, 1, [made])
    assert "token_ids" not in read_rollouts(path)[0]
    advantages = {("t0", 0): np.arange(4, dtype=np.float32), ("t0", 1): np.arange(3, dtype=np.float32)}
    write_rollouts(path, 1, [made], tokens=True, advantages=advantages)
    first, second = read_rollouts(path)
    assert first["token_ids"] == [0, 0, 0, 0] and first["token_logprobs"] == [-0.5, -1.0, -0.5, -1.0]
    assert first["token_advantages"] == [0.0, 1.0, 2.0, 3.0]
    assert second["token_advantages"] is None  # another number of tokens


def test_colors_of_tokens(tmp_path: Path) -> None:
    data = RunData(RunFolder(tmp_path), [], [], "")
    by_logprob = shown_tokens(ROW, data, "logprob")
    assert [one.text for one in by_logprob] == ["5 ", "6 ", "7 "]  # no tokenizer
    assert [one.color.partition("/ ")[2] for one in by_logprob] == ["", "0.38)", "0.75)"]
    assert by_logprob[1].title == "token 6, log-prob -2.500, advantage -0.500"
    green, red, none = (one.color for one in shown_tokens(ROW, data, "advantage"))
    assert green.startswith("rgb(58 157 120 / 0.72") and red.startswith("rgb(207 92 75 / 0.42") and none == ""
    assert shown_tokens({"token_ids": None}, data, "logprob") == []


def test_tokens_are_decoded_by_the_runs_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(["a"], trainer)
    (tmp_path / "model").mkdir()
    made.save(str(tmp_path / "model/tokenizer.json"))
    row = {"token_ids": made.encode("a é!").ids}
    shown = shown_tokens(row, RunData(RunFolder(tmp_path), [], [], ""), "logprob")
    assert [one.text for one in shown] == ["a", " ", "", "é", "!"]  # é has two bytes
