"""Incremental encoding of conversations, which equals the encoding of the whole rendered text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from strop.data.encoding.turn_encoder import TurnEncoder
from strop.errors import DataError, ModelError
from strop.models.tiny import CHAT_TEMPLATE, make_tokenizer

TOOLS_TEMPLATE = Path(__file__).parents[2] / "examples" / "workflows" / "tools.jinja"
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}
THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1].strip() }}"
    "{% else %}{{ m['content'] | trim }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, ["what is the sum of two numbers", "it is four"], 400)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encoder(tokenizer, tmp_path, template) -> TurnEncoder:
    if isinstance(template, Path):
        return TurnEncoder(tokenizer, str(template))
    file = tmp_path / "template.jinja"
    file.write_text(template)
    return TurnEncoder(tokenizer, str(file))


def reply_ids(tokenizer, text, *, ended=True):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.array([*ids, tokenizer.eos_token_id] if ended else ids, np.int32)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<|>{}%", exclude_categories=["Cs"]), max_size=30
)


@settings(deadline=None, max_examples=60)
@given(
    turns=st.lists(st.tuples(WORDS.filter(str.strip), WORDS, st.booleans()), min_size=1, max_size=4),
    new=st.lists(st.tuples(st.sampled_from(["user", "tool"]), WORDS), min_size=1, max_size=3),
    with_tools=st.booleans(),
)
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, TOOLS_TEMPLATE], ids=["tiny", "tools"])
def test_the_tokens_equal_those_of_the_whole_rendering(
    tokenizer, tmp_path_factory, template, turns, new, with_tools
):
    turn_encoder = encoder(tokenizer, tmp_path_factory.mktemp("t"), template)
    tools = (TOOL,) if with_tools and isinstance(template, Path) else ()
    messages = [user("begin")]
    ids = turn_encoder.encode_prompt(messages, tools)
    for said, asked, ended in turns:
        drawn = reply_ids(tokenizer, said, ended=ended)
        messages = [*messages, assistant(said)]
        more = [user(asked)]
        between = turn_encoder.encode_continuation(messages, more, tools, drawn)
        ids = np.concatenate([ids, drawn, between])
        messages += more
    whole = turn_encoder.encode_prompt(messages, tools)
    assert ids.tolist() == whole.tolist()

    drawn = reply_ids(tokenizer, "yes")
    more = [{"role": role, "content": text} for role, text in new]
    between = turn_encoder.encode_continuation([*messages, assistant("yes")], more, tools, drawn)
    whole = turn_encoder.encode_prompt([*messages, assistant("yes"), *more], tools)
    assert [*ids, *drawn, *between] == whole.tolist()


def test_sampled_tokens_stay_although_their_text_would_be_encoded_differently(tokenizer, tmp_path):
    turn_encoder = encoder(tokenizer, tmp_path, CHAT_TEMPLATE)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "four"]
    assert tokenizer("four", add_special_tokens=False)["input_ids"] != letters
    drawn = np.array([*letters, tokenizer.eos_token_id], np.int32)
    between = turn_encoder.encode_continuation([user("2+2"), assistant("four")], [user("sure?")], (), drawn)
    assert tokenizer.decode([*drawn, *between]) == "four<|end|>\n<|user|>\nsure?<|end|>\n<|assistant|>\n"


def test_a_truncated_reply_gets_an_end_token(tokenizer, tmp_path):
    turn_encoder = encoder(tokenizer, tmp_path, CHAT_TEMPLATE)
    drawn = reply_ids(tokenizer, "it is", ended=False)
    between = turn_encoder.encode_continuation([user("2+2"), assistant("it is")], [user("go on")], (), drawn)
    assert tokenizer.decode(between).startswith("<|end|>\n<|user|>\n")


def test_no_new_message_starts_another_reply(tokenizer, tmp_path):
    turn_encoder = encoder(tokenizer, tmp_path, CHAT_TEMPLATE)
    between = turn_encoder.encode_continuation([user("a"), assistant("b")], [], (), reply_ids(tokenizer, "b"))
    assert tokenizer.decode(between) == "\n<|assistant|>\n"


def test_a_template_that_rewrites_earlier_replies_does_not_change_sampled_tokens(tokenizer, tmp_path):
    turn_encoder = encoder(tokenizer, tmp_path, THINKING)
    text = "<think>hm</think>4"
    between = turn_encoder.encode_continuation(
        [user("2+2"), assistant(text)], [user("sure?")], (), reply_ids(tokenizer, text)
    )
    assert tokenizer.decode(between) == "\n<|user|>\nsure?<|end|>\n<|assistant|>\n"


def test_a_template_without_end_tokens_works_too(tokenizer, tmp_path):
    turn_encoder = encoder(tokenizer, tmp_path, NO_END)
    between = turn_encoder.encode_continuation(
        [user("a"), assistant("b")], [user("c")], (), reply_ids(tokenizer, "b", ended=False)
    )
    assert tokenizer.decode(between) == "\nuser: c\nassistant:"


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        (
            "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
            ModelError,
            "omits replies",
        ),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", ModelError, "repeats replies"),
        (
            "{% for m in messages if m.role != 'tool' %}{{ m.content }}{% endfor %}",
            ModelError,
            "does not render messages of the role 'tool'",
        ),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}"
            "{{ raise_exception('no tools here') }}{% endif %}"
            "{{ m.content }}{% endfor %}",
            DataError,
            r"no tools here \(messages of user, assistant, tool\)",
        ),
    ],
)
def test_an_unsuitable_template_is_refused(tokenizer, tmp_path, template, error, words):
    turn_encoder = encoder(tokenizer, tmp_path, template)
    said, new = [user("a"), assistant("b")], [{"role": "tool", "content": "4"}]
    with pytest.raises(error, match=words):
        turn_encoder.encode_continuation(said, new, (), reply_ids(tokenizer, "b"))


def test_plain_text_has_no_second_turn(tokenizer):
    with pytest.raises(ModelError, match=r"chat_template: none encodes one plain text"):
        TurnEncoder(tokenizer, "none").encode_continuation(
            [user("a"), assistant("b")], [user("c")], (), reply_ids(tokenizer, "b")
        )
