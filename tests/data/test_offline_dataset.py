"""Offline datasets: the trained tokens of demonstrations, and invalid rows."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.config.schema.preference import RewardModelingConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.model_tokens import ModelTokens
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
MARKED_WITHOUT_END = MARKED.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>")
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
        rows, *, template="tokenizer", limit=100, overlong="error", tokens=None, reward_model=None, **columns
    ):
        section = TasksetConfig(path=str(write_lines("rows.jsonl", rows)), answer=None, **columns)
        limits = {"max_prompt_tokens": limit, "max_response_tokens": limit, "overlong": overlong}
        data = DataConfig(train=section, chat_template=template, **limits)
        return load_offline_dataset(
            section,
            data,
            tokenizer,
            name="train",
            seed=1,
            shuffle=False,
            tokens=tokens,
            reward_model=reward_model,
        )

    return answers


def experiences(answers: OfflineDataset) -> list[Experience]:
    return [experience for group in answers.all_groups() for experience in group.experiences]


def only(answers: OfflineDataset) -> Experience:
    (experience,) = experiences(answers)
    return experience


@pytest.fixture
def targets(tokenizer):
    """A function that gives the text that is trained on."""
    return lambda experience: tokenizer.decode(experience.token_ids[experience.loss_mask])


@pytest.fixture
def whole(tokenizer):
    return lambda experience: tokenizer.decode(experience.token_ids)


def test_a_plain_answer_follows_the_same_prompt_as_in_sampling(load, tokenizer, targets):
    found = only(load([{"prompt": "2 + 3?", "response": "\n5"}], response="response"))
    prompt = PromptEncoder(tokenizer, "tokenizer").encode([user("2 + 3?")])
    assert found.token_ids[: len(prompt)].tolist() == prompt.tolist()
    assert targets(found) == "\n5<|end|>"
    assert found.role == "sft" and found.prompt_tokens == len(prompt)


TALK = [user("one"), assistant("two"), user("three"), assistant("four")]


def test_only_the_assistants_turns_are_trained_with_their_end_tokens(load, targets, whole):
    found = only(load([{"messages": TALK}], response="messages", system="Count."))
    assert whole(found) == (
        "<|system|>\nCount.<|end|>\n<|user|>\none<|end|>\n<|assistant|>\ntwo<|end|>\n"
        "<|user|>\nthree<|end|>\n<|assistant|>\nfour<|end|>"
    )
    assert targets(found) == "two<|end|>four<|end|>"


@pytest.mark.parametrize(
    ("row", "options", "trained"),
    [
        # Assistant turns of the prompt are not trained.
        ({"prompt": TALK[:3], "r": [TALK[3], user("five"), assistant("six")]}, {}, "four<|end|>six<|end|>"),
        # Messages as JSON text are messages.
        ({"prompt": "x", "r": json.dumps([user("one"), assistant("[2]")])}, {}, "[2]<|end|>"),
        ({"prompt": "x", "r": "[2]"}, {}, "[2]<|end|>"),
        ({"prompt": "2+3=", "r": "5"}, {"template": "none"}, "5<|end|>"),
        # The end token is trained although the mark omits it.
        ({"r": [user("a"), assistant("b")]}, {"template": MARKED_WITHOUT_END}, "b<|end|>"),
        ({"r": TALK}, {"trained_turns": "last"}, "four<|end|>"),
        # Marks on messages.
        ({"r": [*TALK[:3], {**TALK[3], "weight": 0}]}, {}, "two<|end|>"),
        ({"r": [TALK[0], {**TALK[1], "loss": False}, *TALK[2:]]}, {}, "four<|end|>"),
        ({"r": [TALK[0], {**TALK[1], "train": False}, *TALK[2:]]}, {"template": MARKED}, "four<|end|>"),
        # ShareGPT, ms-swift and Alpaca.
        ({"r": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, {}, "b<|end|>"),
        ({"r": json.dumps([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}])}, {}, "b<|end|>"),
        ({"prompt": "a", "r": {"from": "gpt", "value": "b"}}, {}, "b<|end|>"),
        ({"instruction": "Add", "input": "1 2", "r": "3"}, {"prompt": "instruction"}, "3<|end|>"),
        # An answer with an end token gets no second one.
        ({"prompt": "a", "r": "b<|end|>"}, {}, "b<|end|>"),
        ({"prompt": "a", "r": "b<|end|>"}, {"template": MARKED}, "b<|end|>"),
        ({"prompt": "a", "r": "b<|end|>"}, {"template": MARKED_WITHOUT_END}, "b<|end|>"),
        ({"r": [user("a"), assistant("b<|end|>"), *TALK]}, {}, "b<|end|>two<|end|>four<|end|>"),
        ({"prompt": "a", "r": "b<|end|>"}, {"template": "none"}, "b<|end|>"),
        ({"prompt": "a", "r": "b<|end|>\n"}, {"template": "none"}, "b<|end|>"),
    ],
)
def test_what_is_trained(load, targets, row, options, trained):
    assert targets(only(load([row], response="r", **options))) == trained


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"response": [user("a"), assistant("b"), user("c")]},
            "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\nc<|end|>",
        ),
        ({"prompt": [user("a")], "response": "b"}, "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>"),
    ],
)
def test_all_tokens_are_trained_but_the_first(load, whole, row, expected):
    found = only(load([row], response="response", train_on_prompt=True, template=MARKED))
    assert whole(found) == expected
    assert found.loss_mask.tolist() == [False] + [True] * (len(found.token_ids) - 1)


def test_prompt_and_answer_that_are_trained_as_one_text(load, whole):
    found = only(
        load(
            [{"prompt": "a b", "response": " c"}], response="response", train_on_prompt=True, template="none"
        )
    )
    assert whole(found) == "a b c<|end|>" and found.loss_mask.tolist()[:2] == [False, True]


def test_a_mark_contradicts_training_on_all_tokens(load):
    row = {"response": [user("a"), {**assistant("b"), "train": False}]}
    with pytest.raises(DataError, match="train_on_prompt trains all of them"):
        load([row], response="response", train_on_prompt=True)


def test_the_sequence_is_whole_although_only_the_last_turn_is_trained(load, whole):
    last, every = (only(load([{"r": TALK}], response="r", trained_turns=each)) for each in ("last", "all"))
    assert whole(last) == whole(every)


def test_plain_text_without_a_template(load, whole):
    assert whole(only(load([{"prompt": "2+3=", "r": "5"}], response="r", template="none"))) == "2+3=5<|end|>"


def test_marks_and_prefixes_find_the_same_tokens_as_transformers(load, tokenizer, targets):
    """Compared with transformers' mask, which uses character offsets in the whole text."""
    messages = [user("What is 2 + 3?"), assistant("five"), user("and 4?"), assistant("\n\nsix seven")]
    expected = tokenizer.apply_chat_template(
        messages, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    by_marks = only(load([{"messages": messages}], response="messages", template=MARKED))
    by_prefix = only(load([{"messages": messages}], response="messages"))
    picked = np.array(expected["input_ids"])[np.array(expected["assistant_masks"]) == 1]
    assert tokenizer.decode(picked) == targets(by_marks) == targets(by_prefix)
    assert by_marks.token_ids.tolist() == by_prefix.token_ids.tolist()
    assert by_marks.loss_mask.tolist() == by_prefix.loss_mask.tolist()


def test_a_template_that_rewrites_earlier_turns_is_refused(load):
    with pytest.raises(DataError, match=r"rows.jsonl line 1: .*generation"):
        load([{"m": TALK}], response="m", template=THINKS)


PAIR = {"chosen": "chosen", "rejected": "rejected"}
ANSWER = {"response": "response"}
HEADERS = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LABELS = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "ends", "trained", "unended"),
    [
        (HEADERS, ["<|end|>", "<|user|>"], "two<|user|>four<|user|>", 0),
        (HEADERS, ["<|end|>"], "twofour", 2),
        (LABELS, ["<|end|>"], "assistant: two\nassistant: four\n", 2),
        (LABELS.replace("\n", "<|pad|>\n"), ["<|end|>"], "assistant: two<|pad|>assistant: four<|pad|>", 2),
        (LABELS.replace("\n", "<|pad|>\n"), ["<|pad|>"], "assistant: two<|pad|>assistant: four<|pad|>", 0),
    ],
)
def test_the_end_token_is_one_at_which_sampling_stops(
    load, tokenizer, targets, template, ends, trained, unended
):
    tokens = ModelTokens("m", frozenset(tokenizer.convert_tokens_to_ids(ends)), None)
    found = load([{"m": TALK}], response="m", template=template, tokens=tokens)
    assert targets(only(found)) == trained
    assert (found.counts.turns, found.counts.unended) == (2, unended)
    warnings = [note for note in found.notes() if note.startswith("warning: ")]
    assert [w.partition(" do not")[0] for w in warnings] == ["warning: train: 2 of 2 trained turns"] * (
        unended > 0
    )


def test_tool_calls_that_the_template_drops_are_refused(load, targets):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    row = {"m": [user("a"), {**assistant(""), "tool_calls": [call]}, {"role": "tool", "content": "2"}]}
    with pytest.raises(
        DataError, match="line 1: a trained message has tool_calls, which the chat template does"
    ):
        load([row], response="m")
    renders = HEADERS.replace(
        "{{ m['content'] }}", "{{ m['content'] }}{{ m.tool_calls | tojson if m.tool_calls }}"
    )
    assert '"add"' in targets(only(load([row], response="m", template=renders)))


def test_a_token_without_a_row_of_the_embedding_is_refused(load, tokenizer):
    last = len(tokenizer) - 1
    tokens, text = ModelTokens("m", frozenset({1}), last), tokenizer.decode([last])
    rows = (
        ({"prompt": "a", "r": text}, {"response": "r"}),
        ({"prompt": text, "chosen": "a", "rejected": "b"}, PAIR),
        ({"t": text}, {"text": "t"}),
    )
    for row, columns in rows:
        with pytest.raises(
            DataError, match=rf"line 1: the token .* has the id {last}, and the embedding of m"
        ):
            load([row], tokens=tokens, **columns)


ONE, THREE, FOUR = user("one two"), assistant("three"), assistant("four five")
SPOKEN = {"from": "gpt", "value": "three"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "one two", "chosen": "three", "rejected": "four five"},
        {"prompt": "one two", "chosen": [THREE], "rejected": [FOUR]},
        {"chosen": [ONE, THREE], "rejected": [ONE, FOUR]},
        {"chosen": [ONE, THREE], "rejected": "four five"},
        {"chosen": [ONE, {**THREE, "weight": 1}], "rejected": [FOUR]},
        {
            "prompt": [{"from": "human", "value": "one two"}],
            "chosen": SPOKEN,
            "rejected": {**SPOKEN, "value": "four five"},
        },
    ],
    ids=["plain", "messages", "whole conversations", "ms-swift", "marked", "LLaMA-Factory"],
)
def test_pairs(load, targets, row):
    (group,) = load([row], **PAIR).all_groups()
    better, worse = group.experiences
    assert (better.role, worse.role) == ("chosen", "rejected")
    assert better.pair == worse.pair == group.id
    assert targets(better) == "three<|end|>"
    assert targets(worse) == "four five<|end|>"
    shared = better.prompt_tokens
    assert better.token_ids[:shared].tolist() == worse.token_ids[:shared].tolist()


OTHERS = {"chosen": [user("a"), assistant("b")], "rejected": [user("c"), assistant("d")]}


@pytest.mark.parametrize(
    ("row", "columns", "says"),
    [
        ({"prompt": "a", "response": ""}, ANSWER, ": the column 'response' is empty"),
        ({"prompt": "a", "response": None}, ANSWER, ": the column 'response' is empty"),
        ({"prompt": "a"}, ANSWER, " has no 'response'"),
        (
            {"prompt": "a", "response": 3},
            ANSWER,
            ": the value of the column 'response' is 3. A response must",
        ),
        ({"response": [user("a")]}, ANSWER, ": there is no assistant turn"),
        ({"prompt": "a", "chosen": "b"}, PAIR, " has no 'rejected'"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, PAIR, ": the column 'rejected' is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, PAIR, ": 'chosen' and 'rejected' are equal"),
        ({"chosen": TALK, "rejected": TALK}, PAIR, ": 'chosen' and 'rejected' are equal"),
        (OTHERS, PAIR, ": 'chosen' and 'rejected' are not answers to one prompt"),
        (
            {"prompt": "a", "chosen": [{**assistant("b"), "loss": False}], "rejected": "c"},
            PAIR,
            ": a turn of 'chosen' or 'rejected' is marked as not trained on",
        ),
        (
            {"response": [user("a"), {**assistant("b"), "weight": 0}]},
            ANSWER,
            "messages of user, assistant, and 1 turn of the assistant marked as not trained on",
        ),
        ({"body": ""}, {"text": "body"}, ": the text in the column 'body' is empty"),
        (
            {"body": "<|end|>"},
            {"text": "body"},
            ": the text in the column 'body' has 1 tokens; a text needs two",
        ),
        (
            {"body": ["a"]},
            {"text": "body"},
            ": the column 'body' has ['a']; data.train.text names a column of",
        ),
        ({"other": "a"}, {"text": "body"}, ""),
        ({"body": "a\ud800b"}, {"text": "body"}, "half of a surrogate pair"),
    ],
)
def test_a_bad_row_is_named(load, row, columns, says):
    good = {"prompt": "a", "response": "b", "chosen": "c", "rejected": "d", "body": "one two"}
    with pytest.raises(DataError) as caught:
        load([good, row], **columns)
    assert "line 2" in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


class TestTooLong:
    ROWS = ({"prompt": "a", "r": "b"}, {"prompt": "a", "r": "c " * 50})

    @pytest.fixture
    def too_long(self, load):
        return lambda overlong, limit=20: load(self.ROWS, response="r", limit=limit, overlong=overlong)

    def test_is_an_error_that_names_the_row(self, too_long):
        with pytest.raises(DataError, match=r"line 2: prompt and answer have \d+ tokens, more than .*40"):
            too_long("error")

    def test_is_filtered_and_counted(self, too_long):
        assert str(too_long("filter")) == "train: 1 rows; 1 of 2 filtered, because they are too long"

    @pytest.mark.parametrize("overlong", ["left", "right"])
    def test_is_truncated(self, load, too_long, overlong):
        whole = experiences(load(self.ROWS, response="r"))[1]
        kept = experiences(too_long(overlong))[1]
        part = slice(-40, None) if overlong == "left" else slice(40)
        assert list(kept.token_ids) == list(whole.token_ids[part])
        assert list(kept.loss_mask[1:]) == list(whole.loss_mask[part][1:])
        assert not kept.loss_mask[0], "no token precedes the first one"

    def test_all_rows_are_an_error(self, too_long):
        with pytest.raises(DataError, match="All 2 rows of train"):
            too_long("filter", limit=1)

    def test_truncated_rows_are_counted(self, too_long):
        assert str(too_long("right")) == "train: 2 rows; 1 of them truncated"


class TestPairsThatAreTooLong:
    LONG: ClassVar = {"prompt": "1 2 3 4 5 6 7 8 9", "chosen": "a", "rejected": "a b c d e f"}
    """Its prompt has 23 tokens in the template, its responses 2 and 11."""
    SAME_START: ClassVar = {"prompt": "1", "chosen": "a b c d e f", "rejected": "a b c d e g"}

    @pytest.mark.parametrize(
        ("overlong", "limit", "chosen", "rejected"),
        [
            ("left", 15, "a<|end|>", "a b c d e f<|end|>"),
            ("right", 15, "a<|end|>", "a b c d"),
        ],
    )
    def test_the_responses_keep_one_prompt(self, load, targets, overlong, limit, chosen, rejected):
        whole, _ = experiences(load([self.LONG], **PAIR))
        better, worse = experiences(load([self.LONG], **PAIR, overlong=overlong, limit=limit))
        assert (targets(better), targets(worse)) == (chosen, rejected)
        prompt = better.token_ids[: better.prompt_tokens].tolist()
        assert prompt == worse.token_ids[: worse.prompt_tokens].tolist()
        kept = whole.token_ids[: whole.prompt_tokens].tolist()
        assert prompt == (kept[-len(prompt) :] if overlong == "left" else kept)
        assert max(len(better.token_ids), len(worse.token_ids)) == 2 * limit

    @pytest.mark.parametrize(("overlong", "limit"), [("left", 5), ("right", 11), ("filter", 15)])
    def test_a_pair_without_a_prompt_or_a_response_is_filtered(self, load, overlong, limit):
        short = {"prompt": "1", "chosen": "a", "rejected": "b"}
        rows = [self.LONG, {**short, "prompt": ""} if limit == 5 else short]
        found = load(rows, **PAIR, overlong=overlong, limit=limit)
        assert str(found) == "train: 1 rows; 1 of 2 filtered, because they are too long"

    @pytest.mark.parametrize("row", [SAME_START, {"prompt": "1", "chosen": "a", "rejected": "a<|end|>"}])
    def test_pairs_that_become_equal_are_refused_or_counted(self, load, row):
        good = {"prompt": "1", "chosen": "a", "rejected": "b"}
        options = {**PAIR, "overlong": "right", "limit": 8}
        with pytest.raises(
            DataError, match=r"line 2: 'chosen' and 'rejected' are equal.*equal_pairs: filter"
        ):
            load([good, row], **options)
        found = load([good, row], **options, equal_pairs="filter")
        assert str(found) == "train: 1 rows; 1 of 2 filtered, because chosen and rejected are equal"
        with pytest.raises(
            DataError, match=r"All 1 rows of train are filtered: .* and 1 are pairs of equal responses"
        ):
            load([row], **options, equal_pairs="filter")


def test_the_position_is_the_whole_state(load):
    rows = [{"prompt": str(n), "r": str(n)} for n in range(7)]
    answers = load(rows, response="r")
    first = [group.id for _ in range(5) for group in answers.take(3)]
    again = load(rows, response="r")
    again.position = 6
    later = [group.id for group in again.take(3)]
    assert later == first[6:9] == ["train:0", "train:1", "train:2"]


def test_conversations_with_tools(load, targets, whole):
    """Every row of the tool conversations: all assistant turns are trained, and nothing else."""
    rows = read_rows("sft_with_tools/sft_with_tools.jsonl")
    calls = MARKED.replace("<|end|>{% endgen", "{{ m.tool_calls | tojson if m.tool_calls }}<|end|>{% endgen")
    template = "{% if tools %}{{ tools | length }} tools{% endif %}" + calls
    answers = load(rows, response="messages", tools="tools", template=template, limit=5000)
    for row, experience in zip(rows, experiences(answers), strict=True):
        turns = [
            (m.get("content") or "") + (json.dumps(m["tool_calls"]) if m.get("tool_calls") else "")
            for m in json.loads(row["messages"])
            if m["role"] == "assistant"
        ]
        assert targets(experience) == "".join(f"{turn}<|end|>" for turn in turns)
        assert whole(experience).startswith(f"{len(json.loads(row['tools']))} tools<|")


def test_preference_pairs_of_chats(load, targets):
    rows = read_rows("human_like/train.jsonl")
    found = experiences(load(rows, **PAIR, limit=5000))
    expected = [f"{row[side]}<|end|>" for row in rows for side in ("chosen", "rejected")]
    assert [targets(experience) for experience in found] == expected


def test_a_row_may_have_its_own_variables_of_the_template(load, whole):
    template = (
        "{% if enable_thinking is defined and not enable_thinking %}<|user|>{% endif %}"
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    message = {"messages": [user("two"), assistant("four")]}
    rows = [*({**message, "thinking": thinking} for thinking in (True, False, None)), message]
    optional = {"optional_columns": ["thinking", "tools"]}
    columns = {"response": "messages", "tools": "tools", "template_columns": {"enable_thinking": "thinking"}}
    texts = [whole(each) for each in experiences(load(rows, template=template, **columns, **optional))]
    assert [text.count("<|user|>") for text in texts] == [1, 2, 1, 1]
    with pytest.raises(DataError, match="has no 'thinking'"):
        load(rows, template=template, **columns, optional_columns=["tools"])


def test_a_text_is_trained_on_from_its_second_token_on(load, tokenizer):
    first, second = experiences(load([{"body": "one two three"}, {"body": "four<|end|>"}], text="body"))
    assert list(first.token_ids) == tokenizer("one two three<|end|>")["input_ids"], (
        "no template, one end token"
    )
    assert list(first.loss_mask) == [False] + [True] * (len(first.token_ids) - 1)
    assert (first.role, first.prompt_tokens) == ("sft", 1)
    assert list(second.token_ids) == tokenizer("four<|end|>")["input_ids"]


@pytest.mark.parametrize("written", ["", "<|pad|>"], ids=["without", "with its own"])
@pytest.mark.parametrize("single", ["<|pad|> $A", "<|pad|> $A <|end|>"])
def test_a_text_has_the_tokenizers_first_token_and_one_end_token(
    load, tokenizer, monkeypatch, single, written
):
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<|pad|>", "<|end|>")]
    monkeypatch.setattr(
        tokenizer.backend_tokenizer,
        "post_processor",
        TemplateProcessing(single=single, special_tokens=special),
    )
    rows = [{"body": f"{written}one", "prompt": f"{written}one", "r": "two"}]
    decode = tokenizer.decode
    assert decode(only(load(rows, text="body")).token_ids) == "<|pad|>one<|end|>"
    plain = only(load(rows, response="r", template="none"))
    assert decode(plain.token_ids) == "<|pad|>onetwo<|end|>"
    prompt = PromptEncoder(tokenizer, "none").encode([user(f"{written}one")])
    assert prompt.tolist() == plain.token_ids[: plain.prompt_tokens].tolist()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": "body", "tools": "t"}, "tools has no effect next to text"),
        ({"template_columns": {"a": "b"}}, "template_columns applies to demonstrations"),
        ({"optional_columns": ["answer"]}, "optional_columns names 'answer'"),
        ({"response": "r", "equal_pairs": "filter"}, "equal_pairs applies to preferences"),
    ],
)
def test_columns_without_a_meaning_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        TasksetConfig(path="x", **columns)


STEPWISE = {"steps": "steps", "label": "labels"}
STEP_MODEL = RewardModelingConfig(loss="cross_entropy")


class TestRewardModels:
    ROWS = ({"prompt": "1", "chosen": "ab", "rejected": "ac", "m": 2},)

    def test_a_pair_shares_the_tokens_that_both_begin_with(self, load):
        """Also those of the responses, and the rest of the template's text is scored, too."""
        (group,) = load(self.ROWS, **PAIR, margin="m", reward_model=RewardModelingConfig()).all_groups()
        chosen, rejected = group.experiences
        assert (chosen.role, chosen.reward, rejected.role, rejected.reward) == ("chosen", 2, "rejected", 0)
        shared = chosen.prompt_tokens
        assert shared == rejected.prompt_tokens and chosen.loss_mask[shared:].all()
        assert (chosen.token_ids[:shared] == rejected.token_ids[:shared]).all()
        assert chosen.token_ids[shared] != rejected.token_ids[shared]

    @pytest.mark.parametrize("value", [None, "2", True, float("nan")])
    def test_a_margin_or_a_score_is_a_finite_number(self, load, value):
        for row, columns, what in (
            (self.ROWS[0] | {"m": value}, PAIR | {"margin": "m"}, "margin"),
            ({"prompt": "1", "response": "a", "m": value}, {**ANSWER, "score": "m"}, "score"),
        ):
            with pytest.raises(
                DataError, match=f"line 1: the {what} in the column 'm' is .*; write a finite number"
            ):
                load([row], **columns, reward_model=RewardModelingConfig())

    def test_equal_responses_are_refused(self, load):
        with pytest.raises(DataError, match="'chosen' and 'rejected' are equal"):
            load(
                [{"prompt": "1", "chosen": "a", "rejected": "a"}], **PAIR, reward_model=RewardModelingConfig()
            )

    STEPS = {"prompt": "1", "steps": ["ab", "c", "d."], "labels": [True, False, True]}  # noqa: RUF012

    @pytest.mark.parametrize(("template", "tail"), [("tokenizer", True), ("none", False)])
    def test_the_last_tokens_of_steps_have_their_labels(self, load, tokenizer, template, tail):
        """The last step ends at the last token of the text, which a reward of another run reads."""
        one = only(load([self.STEPS], **STEPWISE, template=template, reward_model=STEP_MODEL))
        assert (one.role, one.turn_rewards) == ("stepwise", (1.0, 0.0, 1.0))
        ends = np.flatnonzero(one.loss_mask)
        read = [tokenizer.decode(one.token_ids[: end + 1].tolist()) for end in ends]
        assert [text.endswith(step) for text, step in zip(read, ("ab\n", "c\n"), strict=False)] == [True] * 2
        assert ends[-1] == len(one.token_ids) - 1 and read[-1].endswith("d.") == (not tail)

    def test_truncated_steps_lose_their_labels(self, load):
        whole = only(load([self.STEPS], **STEPWISE, template="none", reward_model=STEP_MODEL))
        limit = int(np.flatnonzero(whole.loss_mask)[1]) + 1
        short = {"limit": limit // 2, "overlong": "right"}
        one = only(load([self.STEPS], **STEPWISE, template="none", reward_model=STEP_MODEL, **short))
        assert one.turn_rewards == ((1.0,) if limit % 2 else (1.0, 0.0))

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"labels": [True]},
                "3 steps in the column 'steps' have 1 labels in 'labels'; write one for each",
            ),
            ({"labels": [1, 0, None]}, "write a list with true for each correct step"),
            ({"labels": True}, "write a list with true for each correct step"),
            ({"steps": "ab"}, "write a list of texts, one for each step"),
            ({"steps": ["ab", ""]}, "write a list of texts, one for each step"),
        ],
    )
    def test_steps_without_texts_or_labels_are_refused(self, load, changed, message):
        with pytest.raises(DataError, match=f"line 1: .*{message}"):
            load([self.STEPS | changed], **STEPWISE, reward_model=STEP_MODEL)

    def test_rows_of_one_score_are_refused(self, load):
        row = {"prompt": "a", "response": "b", "score": 0.5}
        columns = {"response": "response", "score": "score"}
        rows = load([row, row], **columns, reward_model=RewardModelingConfig(loss="squared_error"))
        with pytest.raises(DataError, match=r"All 2 rows of train have the score 0\.5, from which"):
            rows.require_different_labels()

    def test_steps_of_one_label_are_refused(self, load):
        rows = load([self.STEPS | {"labels": [1, 1, 1]}], **STEPWISE, reward_model=STEP_MODEL)
        with pytest.raises(DataError, match="All steps of the 1 rows of train have the label 1, from which"):
            rows.require_different_labels()
