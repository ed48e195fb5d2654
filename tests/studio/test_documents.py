"""Edits of a configuration's text keep everything else as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from strop.errors import ConfigError
from strop.studio.documents import remove_value, set_value

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/**/*.yaml"))[::7]
TEXT = """\
# A first line.
project: sums  # the name

model:
  path: "m"   # quoted
data:
  train: {path: a.jsonl, prompt: question}
  eval:
    - name: held-out
      path: b.jsonl
reward: exact
algorithm: grpo
trainer:
  optimizer: {type: adamw, lr: 5e-4}  # a rate
"""


def changed(key: str, value: str, text: str = TEXT) -> str:
    return set_value(text, tuple(key.split(".")), value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: "/".join(path.parts[-2:]))
def test_setting_and_removing_a_value_changes_no_other_line_of_an_example(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    after = changed("zzz", "1", text)
    assert [line for line in after.splitlines() if line != "zzz: 1"] == text.splitlines()
    assert remove_value(after, ("zzz",)) == text


def test_a_value_is_set_at_its_place() -> None:
    assert changed("trainer.optimizer.lr", "1e-6") == TEXT.replace("5e-4", "1e-6")
    assert changed("data.eval.0.path", "c d.jsonl") == TEXT.replace("b.jsonl", "c d.jsonl")
    assert changed("seed", "1", "# nothing yet\n") == "# nothing yet\nseed: 1\n"


def test_missing_sections_and_items_are_added_and_shorthands_become_sections() -> None:
    text = changed("data.eval.1.path", "c.jsonl", changed("model.lora.rank", "8"))
    text = changed("reward.functions.0.weight", "2", changed("algorithm.rollouts_per_task", "4", text))
    after = yaml.safe_load(text)
    assert after["model"] == {"path": "m", "lora": {"rank": 8}}
    assert after["data"]["eval"] == [{"name": "held-out", "path": "b.jsonl"}, {"path": "c.jsonl"}]
    assert after["algorithm"] == {"type": "grpo", "rollouts_per_task": 4}
    assert after["reward"] == {"functions": [{"function": "exact", "weight": 2}]}


def test_empty_sections_go_with_their_last_value() -> None:
    assert remove_value(changed("model.lora.rank", "8"), ("model", "lora", "rank")) == TEXT
    assert remove_value(TEXT, ("model", "lora", "rank")) == TEXT
    without_lr = remove_value(TEXT, ("trainer", "optimizer", "lr"))
    assert "trainer" not in yaml.safe_load(remove_value(without_lr, ("trainer", "optimizer", "type")))


def test_text_that_is_no_yaml_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="The text is not YAML"):
        changed("seed", "1", "model: [")
    with pytest.raises(ConfigError, match=r"seed: '\[1' is not a YAML value"):
        changed("seed", "[1")
