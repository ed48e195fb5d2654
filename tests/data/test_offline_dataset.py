"""Offline datasets: the trained tokens of demonstrations, and invalid rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.offline_dataset import OfflineDataset, load_offline_dataset
from strop.errors import DataError
from strop.types import Experience
from tests.datasets import read_rows

MARKED = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ m['content'] }}<|end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKS = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['role'] == 'assistant' and loop.last %}<think>\n"
    "{% endif %}{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def load(tokenizer, write_lines):
    """A function that loads rows as an offline dataset."""

    def answers(
        rows: list[Any], *, template: str = "tokenizer", limit: int = 100, **columns: Any
    ) -> OfflineDataset:
        overlong = columns.pop("overlong", "error")
        section = TasksetConfig(path=str(write_lines("rows.jsonl", rows)), answer=None, **columns)
        data = DataConfig(
            train=section,
            max_prompt_tokens=limit,
            max_response_tokens=limit,
            overlong=overlong,
            chat_template=template,
        )
        return load_offline_dataset(section, data, tokenizer, name="train", seed=1, shuffle=False)

    return answers


def only(answers: OfflineDataset) -> Experience:
    (group,) = answers.all_groups()
    (experience,) = group.experiences
    return experience


def targets(tokenizer, experience: Experience) -> str:
    return tokenizer.decode(experience.token_ids[experience.loss_mask])


def whole(tokenizer, experience: Experience) -> str:
    return tokenizer.decode(experience.token_ids)


def test_a_plain_answer_follows_the_same_prompt_as_in_sampling(load, tokenizer) -> None:
    found = only(load([{"prompt": "2 + 3?", "response": "\n5"}], response="response"))
    prompt = PromptEncoder(tokenizer, "tokenizer").encode([user("2 + 3?")])
    assert found.token_ids[: len(prompt)].tolist() == prompt.tolist()
    assert targets(tokenizer, found) == "\n5<|end|>"
    assert found.role == "sft" and found.prompt_tokens == len(prompt)


def test_only_the_assistants_turns_are_trained_with_their_end_tokens(load, tokenizer) -> None:
    messages = [user("one"), assistant("two"), user("three"), assistant("four")]
    found = only(load([{"messages": messages}], response="messages", system="Count."))
    assert whole(tokenizer, found) == (
        "<|system|>\nCount.<|end|>\n<|user|>\none<|end|>\n<|assistant|>\ntwo<|end|>\n"
        "<|user|>\nthree<|end|>\n<|assistant|>\nfour<|end|>"
    )
    assert targets(tokenizer, found) == "two<|end|>four<|end|>"


def test_assistant_turns_of_the_prompt_are_not_trained(load, tokenizer) -> None:
    row = {
        "prompt": [user("one"), assistant("two"), user("three")],
        "response": [assistant("four"), user("five"), assistant("six")],
    }
    assert targets(tokenizer, only(load([row], response="response"))) == "four<|end|>six<|end|>"


def test_messages_as_json_text_are_messages(load, tokenizer) -> None:
    row = {"messages": json.dumps([user("one"), assistant("[2]")]), "prompt": "x"}
    assert targets(tokenizer, only(load([row], response="messages"))) == "[2]<|end|>"
    assert targets(tokenizer, only(load([{"prompt": "x", "r": "[2]"}], response="r"))) == "[2]<|end|>"


def test_marks_and_prefixes_find_the_same_tokens_as_transformers(load, tokenizer, tmp_path) -> None:
    """Compared with transformers' mask, which uses character offsets in the whole text."""
    (tmp_path / "marked.jinja").write_text(MARKED)
    messages = [user("What is 2 + 3?"), assistant("five"), user("and 4?"), assistant("\n\nsix seven")]
    row = {"messages": messages}
    expected = tokenizer.apply_chat_template(
        messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    by_marks = only(load([row], response="messages", template=str(tmp_path / "marked.jinja")))
    by_prefix = only(load([row], response="messages"))
    picked = np.array(expected["input_ids"])[np.array(expected["assistant_masks"]) == 1]
    assert tokenizer.decode(picked) == targets(tokenizer, by_marks) == targets(tokenizer, by_prefix)
    assert by_marks.token_ids.tolist() == by_prefix.token_ids.tolist()
    assert by_marks.loss_mask.tolist() == by_prefix.loss_mask.tolist()


def test_the_end_token_is_trained_although_the_mark_omits_it(load, tokenizer, tmp_path) -> None:
    (tmp_path / "t.jinja").write_text(
        MARKED.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>")
    )
    found = only(load([{"m": [user("a"), assistant("b")]}], response="m", template=str(tmp_path / "t.jinja")))
    assert targets(tokenizer, found) == "b<|end|>"


def test_a_template_that_rewrites_earlier_turns_is_refused(load, tmp_path) -> None:
    (tmp_path / "thinks.jinja").write_text(THINKS)
    row = {"m": [user("a"), assistant("b"), user("c"), assistant("d")]}
    with pytest.raises(DataError, match=r"rows.jsonl line 1: .*generation"):
        load([row], response="m", template=str(tmp_path / "thinks.jinja"))


def test_plain_text_without_a_template(load, tokenizer) -> None:
    found = only(load([{"prompt": "2+3=", "r": "5"}], response="r", template="none"))
    assert whole(tokenizer, found) == "2+3=5<|end|>"
    assert targets(tokenizer, found) == "5<|end|>"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "one two", "chosen": "three", "rejected": "four five"},
        {"prompt": "one two", "chosen": [assistant("three")], "rejected": [assistant("four five")]},
        {
            "chosen": [user("one two"), assistant("three")],
            "rejected": [user("one two"), assistant("four five")],
        },
    ],
    ids=["plain", "messages", "whole conversations"],
)
def test_pairs(load, tokenizer, row) -> None:
    (group,) = load([row], chosen="chosen", rejected="rejected").all_groups()
    better, worse = group.experiences
    assert (better.role, worse.role) == ("chosen", "rejected")
    assert better.pair == worse.pair == group.id
    assert targets(tokenizer, better) == "three<|end|>"
    assert targets(tokenizer, worse) == "four five<|end|>"
    shared = better.prompt_tokens
    assert better.token_ids[:shared].tolist() == worse.token_ids[:shared].tolist()


@pytest.mark.parametrize(
    ("row", "columns", "says"),
    [
        ({"prompt": "a", "response": ""}, {"response": "response"}, "line 2: the column 'response' is empty"),
        (
            {"prompt": "a", "response": None},
            {"response": "response"},
            "line 2: the column 'response' is empty",
        ),
        ({"prompt": "a"}, {"response": "response"}, "line 2 has no 'response'"),
        ({"prompt": "a", "response": 3}, {"response": "response"}, "line 2: the prompt is 3"),
        ({"response": [user("a")]}, {"response": "response"}, "line 2: there is no assistant turn"),
        (
            {"prompt": "a", "chosen": "b"},
            {"chosen": "chosen", "rejected": "rejected"},
            "line 2 has no 'rejected'",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": None},
            {"chosen": "chosen", "rejected": "rejected"},
            "line 2: the column 'rejected' is empty",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "b"},
            {"chosen": "chosen", "rejected": "rejected"},
            "line 2: 'chosen' and 'rejected' are equal",
        ),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("d")]},
            {"chosen": "chosen", "rejected": "rejected"},
            "line 2: 'chosen' and 'rejected' are not answers to one prompt",
        ),
    ],
)
def test_a_bad_row_is_named(load, row, columns, says) -> None:
    good = {"prompt": "a", "response": "b", "chosen": "c", "rejected": "d"}
    with pytest.raises(DataError) as caught:
        load([good, row], **columns)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


class TestTooLong:
    ROWS = ({"prompt": "a", "r": "b"}, {"prompt": "a", "r": "c " * 50})

    def test_is_an_error_that_names_the_row(self, load) -> None:
        with pytest.raises(DataError, match=r"line 2: prompt and answer have \d+ tokens, more than .*40"):
            load(list(self.ROWS), response="r", limit=20)

    def test_is_filtered_and_counted(self, load) -> None:
        found = load(list(self.ROWS), response="r", limit=20, overlong="filter")
        assert str(found) == "train: 1 rows; 1 of 2 filtered, because they are too long"

    def test_is_truncated_at_its_end(self, load) -> None:
        found = load(list(self.ROWS), response="r", limit=20, overlong="right")
        assert [len(g.experiences[0].token_ids) for g in found.all_groups()][1] == 40

    def test_is_truncated_at_its_beginning(self, load) -> None:
        whole = load(list(self.ROWS), response="r").all_groups()[1].experiences[0]
        kept = load(list(self.ROWS), response="r", limit=20, overlong="left").all_groups()[1].experiences[0]
        assert list(kept.token_ids) == list(whole.token_ids[-40:])
        assert list(kept.loss_mask) == [False, *whole.loss_mask[-39:]], "no token precedes the first one"

    def test_all_rows_are_an_error(self, load) -> None:
        with pytest.raises(DataError, match="All 2 rows of train"):
            load(list(self.ROWS), response="r", limit=1, overlong="filter")


def test_the_position_is_the_whole_state(load) -> None:
    rows = [{"prompt": str(n), "r": str(n)} for n in range(7)]
    answers = load(rows, response="r")
    first = [group.id for _ in range(5) for group in answers.take(3)]
    again = load(rows, response="r")
    again.position = 6
    later = [group.id for group in again.take(3)]
    assert later == first[6:9] == ["train:0", "train:1", "train:2"]


def test_conversations_with_tools(load, tokenizer, tmp_path) -> None:
    """Every row of the tool conversations: all assistant turns are trained, and nothing else."""
    rows = read_rows("sft_with_tools/sft_with_tools.jsonl")
    template = "{% if tools %}{{ tools | length }} tools{% endif %}" + MARKED
    (tmp_path / "t.jinja").write_text(template)
    answers = load(rows, response="messages", tools="tools", template=str(tmp_path / "t.jinja"), limit=5000)
    for row, group in zip(rows, answers.all_groups(), strict=True):
        turns = [m.get("content") or "" for m in json.loads(row["messages"]) if m["role"] == "assistant"]
        (experience,) = group.experiences
        assert targets(tokenizer, experience) == "".join(f"{turn}<|end|>" for turn in turns)
        assert whole(tokenizer, experience).startswith(f"{len(json.loads(row['tools']))} tools<|")


def test_preference_pairs_of_chats(load, tokenizer) -> None:
    rows = read_rows("human_like/train.jsonl")
    answers = load(rows, chosen="chosen", rejected="rejected", limit=5000)
    for row, group in zip(rows, answers.all_groups(), strict=True):
        assert [targets(tokenizer, e) for e in group.experiences] == [
            f"{row['chosen']}<|end|>",
            f"{row['rejected']}<|end|>",
        ]


def test_only_the_last_turn_can_be_trained(load, tokenizer) -> None:
    talk = [user("1?"), assistant("one"), user("2?"), assistant("two")]
    found = only(load([{"messages": talk}], response="messages", trained_turns="last"))
    assert targets(tokenizer, found) == "two<|end|>"
    every = only(load([{"messages": talk}], response="messages"))
    assert "one" in targets(tokenizer, every) and whole(tokenizer, every) == whole(tokenizer, found)


def test_a_row_may_have_its_own_variables_of_the_template(load, tokenizer) -> None:
    template = (
        "{% if enable_thinking is defined and not enable_thinking %}<|user|>{% endif %}"
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    rows = [
        {"messages": [user("two"), assistant("four")], "thinking": thinking}
        for thinking in (True, False, None)
    ]
    rows.append({"messages": [user("two"), assistant("four")]})
    columns = {
        "response": "messages",
        "tools": "tools",
        "template_columns": {"enable_thinking": "thinking"},
        "optional_columns": ["thinking", "tools"],
    }
    loaded = load(rows, template=template, **columns)
    texts = [whole(tokenizer, group.experiences[0]) for group in loaded.all_groups()]
    assert [text.count("<|user|>") for text in texts] == [1, 2, 1, 1]
    with pytest.raises(DataError, match="has no 'thinking'"):
        load(rows, template=template, **{**columns, "optional_columns": ["tools"]})


def test_a_text_is_trained_on_from_its_second_token_on(load, tokenizer) -> None:
    dataset = load([{"body": "one two three"}, {"body": "four"}], text="body")
    first, second = (group.experiences[0] for group in dataset.all_groups())
    assert list(first.token_ids) == tokenizer("one two three")["input_ids"], "no template and no end token"
    assert list(first.loss_mask) == [False] + [True] * (len(first.token_ids) - 1)
    assert (first.role, first.prompt_tokens) == ("sft", 1)
    assert list(second.token_ids) == tokenizer("four")["input_ids"]


def test_a_text_has_the_tokenizers_own_special_tokens(load, tokenizer, monkeypatch) -> None:
    from tokenizers.processors import TemplateProcessing

    start = tokenizer.convert_tokens_to_ids("<|end|>")
    template = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", start)])
    monkeypatch.setattr(tokenizer.backend_tokenizer, "post_processor", template)
    assert only(load([{"body": "one"}], text="body")).token_ids[0] == start


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"body": ""}, "line 2: the text in the column 'body' has 0 tokens; a text needs two"),
        ({"body": ["a"]}, "line 2: the column 'body' has ['a']; data.train.text names a column of text"),
        ({"other": "a"}, "line 2"),
        ({"body": "a\ud800b"}, "half of a surrogate pair"),
    ],
)
def test_a_bad_text_is_named(load, row, says) -> None:
    with pytest.raises(DataError) as caught:
        load([{"body": "one two"}, row], text="body")
    assert says in str(caught.value)


def test_columns_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="tools has no effect next to text"):
        TasksetConfig(path="x", text="body", tools="t")
    with pytest.raises(ValueError, match="template_columns applies to demonstrations"):
        TasksetConfig(path="x", template_columns={"a": "b"})
    with pytest.raises(ValueError, match="optional_columns names 'answer'"):
        TasksetConfig(path="x", optional_columns=["answer"])
