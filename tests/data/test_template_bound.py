"""The bound on a rendered prompt's length: where it exists it holds, and templates that read contents have none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.prompt_bounds import TemplateBound
from strop.data.taskset import load_taskset
from strop.errors import DataError

CHATML = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}"
    "{%- if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or message.role == 'system' and not loop.first %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- elif message.role == 'assistant' %}{% if message.content %}{{ message.content }}{% endif %}{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMMED = (
    "{{ bos_token }}{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<' + message['role'] + '>\\n\\n' + message['content'] | trim + '<eot>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
)
TYPED = (
    "{% for m in messages %}[{% if m.content is string and m.content is not mapping and 'tools' not in m %}"
    "{{ m.content.strip() }} {{ m.content | default('-') }}{% else %}{{ m.content.text }}{% endif %}]"
    "{% if not loop.last %}\u00e9{% endif %}{% endfor %}"
)
ARGS: dict[str, Any] = {"bos_token": "<s>"}
BOUNDED = [CHATML, TRIMMED, TYPED]
READ = {
    "a condition": "a{% if messages[0].content %}b{% endif %}",
    "a search": "a{% if 'x' in messages[0].content %}{{ 'b' * 99 }}{% endif %}",
    "a method": "a{{ messages[0].content.split('x')[-1] }}",
    "a filter that lengthens": "a{{ messages[0].content | replace('x', 'yy') }}",
    "a number": "a{{ 'b' * (messages[0].content | int) }}",
    "a length": "a{{ 'b' * (messages[0].content | length) }}",
    "JSON": "a{{ messages | tojson }}",
    "a joined list": "a{{ messages | map(attribute='content') | join(',') }}",
    "a printed message": "a{{ messages[0] }}",
    "a comparison": "a{{ messages[0].content == 'x' }}",
    "a key": "a{{ {'x': 'b'}.get(messages[0].content) }}",
    "a loop": "a{% for letter in messages[0].content %}{{ letter }}{{ letter }}{% endfor %}",
    "a test": "a{{ messages[0].content is lower }}",
    "a set block": "a{% set b %}{{ messages[0].content }}{% endset %}{% if 'x' in b %}b{% endif %}",
    "a macro": "a{% macro m(t) %}{{ t }}{% endmacro %}{% if 'x' in m(messages[0].content) %}b{% endif %}",
    "a filter block": "a{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "a recursive loop": "a{% for m in messages recursive %}{{ m.content }}{% endfor %}",
    "escaping": "a{% autoescape true %}{{ messages[0].content }}{% endautoescape %}",
    "the time": "a{{ strftime_now('%B') }}{{ messages[0].content }}",
    "nothing around it": "{{ messages[0].content }}",
    "an error": "a{{ raise_exception('no') }}",
}
contents = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "  x \n", "{{ x }}", "é ß"]
)


@pytest.fixture(scope="module")
def bounds(tokenizer):
    return {each: TemplateBound(each, {**tokenizer.special_tokens_map, **ARGS}) for each in BOUNDED}


@settings(max_examples=40)
@given(
    texts=st.lists(contents, min_size=1, max_size=3),
    roles=st.sampled_from([("system", "user", "user"), ("user", "user", "user"), ("user", "system", "user")]),
)
def test_no_prompt_is_longer_than_its_bound(tokenizer, bounds, texts, roles):
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    for template in BOUNDED:
        bound = bounds[template](roles[: len(texts)])
        assert bound is not None, template
        options = {"tokenize": False, "add_generation_prompt": True, **ARGS}
        shown = tokenizer.apply_chat_template(messages, chat_template=template, **options)
        num_bytes = len(str(shown).encode())
        lengths = [times * len(text.encode()) for times, text in zip(bound.times, texts, strict=False)]
        at_most = bound.fixed_bytes + sum(lengths)
        trims = "trim" in template or "strip" in template
        assert num_bytes <= at_most if trims else num_bytes == at_most


def test_times_and_fixed_bytes_by_hand():
    bound = TemplateBound("<{{ messages[0].content }}é{{ messages[0].content + '!' }}>", {})(("user",))
    assert bound is not None
    assert (bound.fixed_bytes, bound.fixed_is_ascii, bound.times) == (len("<é!>".encode()), False, (2, 1))


@pytest.mark.parametrize("what", READ)
def test_a_template_that_reads_a_content_has_no_bound(what):
    assert TemplateBound(READ[what], {})(("user",)) is None


def test_a_bound_is_that_of_the_roles():
    """CHATML reads the contents of the assistant only."""
    bound = TemplateBound(CHATML, {})
    assert bound(("user", "assistant", "user")) is None
    assert bound(("user", "user")) is not None


@pytest.mark.parametrize("template", [*BOUNDED, READ["a search"], READ["a filter that lengthens"]])
def test_bounds_change_no_result(template, tokenizer, write_lines, monkeypatch):
    """The rows that are kept, their order and tokens are those of rendering and encoding every prompt."""
    rows = [{"question": "x é" * (7 * i % 60 if i % 2 else 0) + f" {i} ", "answer": i} for i in range(60)]
    named = {"question": [{"role": "user", "content": "one", "name": "a"}], "answer": 1}
    path = write_lines("rows.jsonl", [*rows, named])
    section = TasksetConfig(path=str(path), prompt="question", reply_prefix="So")
    limits = {"max_prompt_tokens": 130 if template in BOUNDED else 60, "overlong": "filter"}
    data = DataConfig(train=section, chat_template=template + " ", chat_template_args=ARGS, **limits)

    def taskset() -> Any:
        loaded = load_taskset(section, data, tokenizer, seed=3, shuffle=True)
        tasks = [(task.id, task.prompt_ids.tolist()) for _ in range(5) for task in loaded.take(4)]
        return str(loaded), loaded.fingerprint, tasks

    quick = taskset()
    encoded: list[int] = []

    def encode_every(self: PromptEncoder, prompts: Any, limit: int) -> Any:
        encoded.append(len(prompts))
        return self.encode_all(prompts)

    monkeypatch.setattr(PromptEncoder, "encode_longer", encode_every)
    assert quick == taskset()
    assert sum(encoded) == 61 and "filtered" in quick[0]


def test_a_prompt_that_is_no_text_is_named_whether_or_not_it_is_short(tokenizer, monkeypatch):
    encoder = PromptEncoder(tokenizer, CHATML)
    good, bad = (
        ChatPrompt(f"row {i}", ({"role": "user", "content": text},)) for i, text in enumerate("a\ud800")
    )
    with pytest.raises(DataError, match="row 1: the text contains half of a surrogate pair"):
        encoder.encode_longer([good, bad], 1000)
    rendered: list[int] = []

    def no_texts(prompts: Any) -> list[str]:
        rendered.append(len(prompts))
        return []

    monkeypatch.setattr(encoder, "_texts", no_texts)
    assert encoder.encode_longer([good, good], 1000) == [None, None]
    assert rendered == [0], "nothing is rendered"
