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


def encoder(tokenizer, template):
    return TurnEncoder(tokenizer, str(template))


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
def test_the_tokens_equal_those_of_the_whole_rendering(tokenizer, template, turns, new, with_tools):
    turn_encoder = encoder(tokenizer, template)
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


def test_sampled_tokens_stay_although_their_text_would_be_encoded_differently(tokenizer):
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "four"]
    assert tokenizer("four", add_special_tokens=False)["input_ids"] != letters
    drawn = np.array([*letters, tokenizer.eos_token_id], np.int32)
    conversation = [user("2+2"), assistant("four")], [user("sure?")]
    between = encoder(tokenizer, CHAT_TEMPLATE).encode_continuation(*conversation, (), drawn)
    assert tokenizer.decode([*drawn, *between]) == "four<|end|>\n<|user|>\nsure?<|end|>\n<|assistant|>\n"


SURE = "\n<|user|>\nsure?<|end|>\n<|assistant|>\n"


@pytest.mark.parametrize(
    ("template", "said", "ended", "asked", "expected"),
    [
        (CHAT_TEMPLATE, "it is", False, [user("sure?")], f"<|end|>{SURE}"),  # a truncated reply
        (CHAT_TEMPLATE, "b", True, [], "\n<|assistant|>\n"),  # another reply
        (THINKING, "<think>hm</think>4", True, [user("sure?")], SURE),  # rewrites earlier replies
        (NO_END, "b", False, [user("c")], "\nuser: c\nassistant:"),
    ],
)
def test_a_continuation_has_what_follows_the_sampled_tokens(
    tokenizer, template, said, ended, asked, expected
):
    drawn = reply_ids(tokenizer, said, ended=ended)
    between = encoder(tokenizer, template).encode_continuation([user("a"), assistant(said)], asked, (), drawn)
    assert tokenizer.decode(between) == expected


def test_special_tokens_of_earlier_replies_are_not_given_to_the_template(tokenizer):
    """gpt-oss's template refuses its channels in a content."""
    refuses = CHAT_TEMPLATE.replace(
        "%}<|", "%}{% if '<|user|>' in message.content %}{{ raise_exception('tags') }}{% endif %}<|", 1
    )
    conversation = [user("a"), assistant("<|user|>b"), user("c"), assistant("d")]
    drawn = reply_ids(tokenizer, "d")
    between = encoder(tokenizer, refuses).encode_continuation(conversation, [user("sure?")], (), drawn)
    assert tokenizer.decode(between) == SURE


ALL = "{% for m in messages %}{{ m.content }}"


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        (ALL.replace("%}", "if m.role != 'assistant' %}", 1) + "{% endfor %}", ModelError, "omits replies"),
        (ALL + "{{ m.content }}{% endfor %}", ModelError, "repeats replies"),
        (
            ALL.replace("%}", "if m.role != 'tool' %}", 1) + "{% endfor %}",
            ModelError,
            "does not render messages of the role 'tool'",
        ),
        (
            ALL + "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}",
            DataError,
            r"no tools here \(messages of user, assistant, tool\)",
        ),
        ("none", ModelError, "chat_template: none encodes one plain text"),
    ],
)
def test_an_unsuitable_template_is_refused(tokenizer, template, error, words):
    said, new = [user("a"), assistant("b")], [{"role": "tool", "content": "4"}]
    with pytest.raises(error, match=words):
        encoder(tokenizer, template).encode_continuation(said, new, (), reply_ids(tokenizer, "b"))
