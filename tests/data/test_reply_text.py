"""Text of sampled tokens: tags that are special tokens stay, what ends a turn goes."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.reply import ReplyDecoder
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.models.tiny import CHAT_TEMPLATE, make_tokenizer

TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "[THINK]"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|eom|>", "<s>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPEN = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
EMPTY = OPEN.replace("<think>\n", "<think>\n\n</think>\n\n")
REFUSES = "{{ raise_exception('no conversations') }}"
HEADERS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module", params=[True, False], ids=["special", "added"])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, ["two and three is five"], 400)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(TAGS, special_tokens=request.param)
    tokenizer.add_tokens(CONTROL, special_tokens=True)
    tokenizer.bos_token = "<s>"
    return tokenizer


def ids_of(tokenizer, text):
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)


def encoder(tokenizer, template, *ends):
    return TurnEncoder(tokenizer, template, eos_ids=tokenizer.convert_tokens_to_ids(list(ends)))


ANSWER = "<think>two and three</think><answer>5</answer>"


@pytest.mark.parametrize(
    ("template", "ends", "sampled", "text"),
    [
        (CHAT_TEMPLATE, (), f"{ANSWER}<|end|>", ANSWER),
        (CHAT_TEMPLATE, (), "<tool_call>{}</tool_call><|end|>", "<tool_call>{}</tool_call>"),
        (CHAT_TEMPLATE, (), "<think>two", "<think>two"),  # at the token limit
        (CHAT_TEMPLATE, (), "5</answer>", "5</answer>"),  # ended by a stop text
        (CHAT_TEMPLATE, (), "<|end|>", ""),
        (CHAT_TEMPLATE, (), "", ""),
        (CHAT_TEMPLATE, (), "<s>five<|end|><|pad|><|pad|>", "five"),
        (CHAT_TEMPLATE, (), "five<|end|>six<|end|>", "fivesix"),  # ignore_eos
        (CHAT_TEMPLATE, (), "five<|eom|>", "five<|eom|>"),
        (CHAT_TEMPLATE, ("<|eom|>",), "five<|eom|>", "five"),  # generation_config.json has several
        (CHATML, (), "five<|im_end|>", "five"),  # the mark is not the tokenizer's end token
        (CHATML, (), "five<|im_end|>\n<|im_start|>user\nsix", "five\n<|im_start|>user\nsix"),
        (CHATML, (), "<|im_start|>five", "<|im_start|>five"),
        ("none", (), f"{ANSWER}<|end|>", ANSWER),
        (REFUSES, ("<|im_end|>",), f"{ANSWER}<|im_end|>", ANSWER),
        (HEADERS, (), f"{ANSWER}<|user|>", f"{ANSWER}<|user|>"),
        (HEADERS, ("<|user|>",), f"{ANSWER}<|user|>", ANSWER),
    ],
)
def test_the_text_of_an_answer(tokenizer, template, ends, sampled, text):
    found = encoder(tokenizer, template, *ends).replies.decode(ids_of(tokenizer, sampled))
    assert found == text


def test_without_a_template_the_tokenizers_own_has_the_mark(tokenizer):
    prompts = PromptEncoder(tokenizer, "none")
    found = ids_of(tokenizer, "five<|im_end|>")
    assert ReplyDecoder(tokenizer, prompts).decode(found) == "five<|im_end|>"
    tokenizer.chat_template, before = CHATML, tokenizer.chat_template
    try:
        assert ReplyDecoder(tokenizer, prompts).decode(found) == "five"
    finally:
        tokenizer.chat_template = before


def test_several_turns_have_the_tags_of_replies_and_messages_and_no_headers(tokenizer):
    first = f"{ANSWER}<|im_start|><|im_end|>"
    between = "\n<|im_start|>tool\n<answer>6</answer><|im_end|>\n<|im_start|>assistant\n"
    pieces = [ids_of(tokenizer, piece) for piece in (first, between, "six<|im_end|>")]
    sampled = np.repeat([True, False, True], [len(piece) for piece in pieces])
    found = encoder(tokenizer, CHATML).replies.decode(np.concatenate(pieces), sampled)
    assert found == f"{ANSWER}<|im_start|>\ntool\n<answer>6</answer>\nassistant\nsix"


def test_a_reply_that_is_rendered_again_begins_no_other_turn(tokenizer):
    sampled = ids_of(tokenizer, f"{ANSWER}<|im_end|>\n<|im_start|>user\nsix<|im_end|>")
    assert encoder(tokenizer, CHATML).replies.decode_content(sampled) == f"{ANSWER}\nuser\nsix"


@pytest.mark.parametrize(
    ("template", "prefix", "expected"),
    [
        (CHATML, "", False),
        (CHATML, "<think>", True),
        (CHATML, "<think>\nFirst,", True),
        (CHATML, "<think>First</think>", False),
        (CHATML, "[THINK]", True),
        (OPEN, "", True),
        (EMPTY, "", False),
        ("none", "\n<think>", True),
        ("none", "", False),
    ],
)
def test_prompts_that_open_the_reasoning(tokenizer, template, prefix, expected):
    user = {"role": "user", "content": "Think in\n<think> tags."}
    turn_encoder = encoder(tokenizer, template)
    prompt = user if template != "none" else {**user, "content": "Think."}
    ids = turn_encoder.encode_prompt([prompt], reply_prefix=prefix)
    assert turn_encoder.opens_reasoning(ids) is expected
