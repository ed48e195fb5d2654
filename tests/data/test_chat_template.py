"""Conversion of prompts to messages, and their encoding with chat templates."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.messages import to_messages, to_tools
from strop.data.encoding.template_limits import (
    TemplateTimeout,
    _Rendering,
    limited_rendering,
    template_fault,
)
from strop.errors import ConfigError, DataError, ModelError

USER = {"role": "user", "content": "What is 2 + 3?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


LONG = {"role": "system", "content": "Be long."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "2 + 3"}]}
CALL = {"function": {"name": "add", "arguments": {"a": 2, "b": None}}, "id": None}
WITH_NULLS = {"role": "assistant", "content": None, "tool_calls": [CALL], "name": None}
WITHOUT = {"tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": None}}}]}


class TestMessages:
    @pytest.mark.parametrize(
        ("value", "system", "messages"),
        [
            ("What is 2 + 3?", None, (USER,)),
            ("What is 2 + 3?", "Be brief.", (SYSTEM, USER)),
            ([USER], "Be brief.", (SYSTEM, USER)),
            ([LONG, USER], "Be brief.", (LONG, USER)),  # one that has a system message keeps it
            ([PARTS], None, ({"role": "user", "content": "2 + 3"},)),
            # Null keys say nothing; the arguments of a call are JSON values.
            ([USER | {"tool_calls": None}], None, (USER,)),
            ([WITH_NULLS], None, ({"role": "assistant", "content": "", **WITHOUT},)),
        ],
    )
    def test_values_become_messages(self, value, system, messages):
        assert to_messages(value, "row", system=system) == messages

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (None, "line 3: the prompt is null. A prompt must be plain text, or a list of messages"),
            ([], r"the prompt is \[\]"),
            (5, "the prompt is 5"),
            ({"role": "user", "content": "x"}, "the prompt is {"),
            (["x"], "line 3, message 1 is 'x'. A message must have a role and a content"),
            ([USER, {"content": "x"}], "message 2 is {'content': 'x'}"),
            ([{"role": "user"}], "message 1 is"),
            ([{"role": 1, "content": "x"}], "message 1 is"),
            ([{"role": "user", "content": [{"type": "video"}]}], "is neither text nor an image"),
            ([{"role": "user", "content": ["x"]}], "is neither text nor an image"),
            ([{"role": "user", "content": [{"type": "text"}]}], "of type text without a text"),
        ],
    )
    def test_other_values_are_refused(self, value, message):
        with pytest.raises(DataError, match=message):
            to_messages(value, "a.jsonl line 3")

    def test_long_values_are_shortened_in_messages(self):
        with pytest.raises(DataError) as error:
            to_messages({"x": "y" * 1000}, "row")
        assert len(str(error.value)) < 300


class TestTools:
    @pytest.mark.parametrize(
        ("value", "tools"),
        [
            ([TOOL], (TOOL,)),
            ('[{"type": "function"}]', ({"type": "function"},)),
            (None, ()),
            ([TOOL | {"strict": None}], (TOOL | {"strict": None},)),
        ],
    )
    def test_values_become_tools(self, value, tools):
        assert to_tools(value, "row") == tools

    @pytest.mark.parametrize(
        ("value", "message"), [("[{", "not JSON"), (5, "the tools are 5"), (["add"], "not a list of objects")]
    )
    def test_other_values_are_refused(self, value, message):
        with pytest.raises(DataError, match=message):
            to_tools(value, "row")


class TestEncoder:
    def test_by_the_tokenizers_template(self, tokenizer):
        ids = PromptEncoder(tokenizer, "tokenizer").encode([SYSTEM, USER])
        assert ids.dtype == np.int32
        text = "<|system|>\nBe brief.<|end|>\n<|user|>\nWhat is 2 + 3?<|end|>\n<|assistant|>\n"
        assert tokenizer.decode(ids) == text
        options = {"add_generation_prompt": True, "return_dict": False}
        assert ids.tolist() == tokenizer.apply_chat_template([SYSTEM, USER], **options)

    def test_by_a_file(self, tokenizer, tmp_path):
        file = tmp_path / "template.jinja"
        file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}>")
        ids = PromptEncoder(tokenizer, str(file)).encode([USER])
        assert tokenizer.decode(ids) == "[user] What is 2 + 3?\n>"

    def test_tools_reach_the_template(self, tokenizer):
        template = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}"
        encoder = PromptEncoder(tokenizer, template)
        assert tokenizer.decode(encoder.encode([USER], (TOOL,))) == "add What is 2 + 3?"
        assert tokenizer.decode(encoder.encode([USER])) == "What is 2 + 3?"

    def test_none_encodes_plain_text_without_a_template(self, tokenizer):
        ids = PromptEncoder(tokenizer, "none").encode([USER])
        assert ids.tolist() == tokenizer.encode("What is 2 + 3?")
        assert tokenizer.decode(ids) == "What is 2 + 3?"

    def test_none_adds_the_tokenizers_special_tokens(self, tokenizer):
        with_bos = copy.deepcopy(tokenizer)
        with_bos.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|system|> $A", special_tokens=[("<|system|>", 2)]
        )
        plain = PromptEncoder(tokenizer, "none").encode([USER])
        assert PromptEncoder(with_bos, "none").encode([USER]).tolist() == [2, *plain]
        chat = PromptEncoder(tokenizer, "tokenizer").encode([USER])
        assert PromptEncoder(with_bos, "tokenizer").encode([USER]).tolist() == chat.tolist()

    @pytest.mark.parametrize(
        ("messages", "tools", "message"),
        [
            ([SYSTEM, USER], (), "has messages of system, user"),
            ([SYSTEM], (), "has messages of system"),
            ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], (), "has content in parts"),
            ([USER], (TOOL,), "has tools"),
        ],
    )
    def test_none_takes_one_plain_text_only(self, tokenizer, messages, tools, message):
        with pytest.raises(DataError, match=message):
            PromptEncoder(tokenizer, "none").encode(messages, tools)

    def test_encode_all_equals_encode(self, tokenizer):
        encoder = PromptEncoder(tokenizer, "tokenizer")
        prompts = [ChatPrompt(f"row {i}", ({"role": "user", "content": "one " * i},)) for i in range(20)]
        for prompt, ids in zip(prompts, encoder.encode_all(prompts), strict=True):
            assert ids.tolist() == encoder.encode(prompt.messages).tolist()

    def test_a_tokenizer_without_template(self, tokenizer):
        bare = copy.deepcopy(tokenizer)
        bare.chat_template = None
        with pytest.raises(ModelError, match=r"has no chat template.*Write data\.chat_template: none"):
            PromptEncoder(bare, "tokenizer")
        assert len(PromptEncoder(bare, "none").encode([USER]))

    def test_a_missing_file(self, tokenizer):
        with pytest.raises(ConfigError, match=r"data\.chat_template: nope\.jinja cannot be read"):
            PromptEncoder(tokenizer, "nope.jinja")

    @pytest.mark.parametrize(
        "template",
        [
            "{{ raise_exception('only users') }}",
            "{{ 'a' + messages[0].nope.more }}",
            "{{ 1 + 'a' }}",
        ],
    )
    def test_a_template_that_fails_names_the_row(self, tokenizer, template):
        encoder = PromptEncoder(tokenizer, template)
        with pytest.raises(DataError, match=r"line 7: the chat template cannot render this prompt: "):
            encoder.encode_all([ChatPrompt("a.jsonl line 7", (USER,))])

    @pytest.mark.parametrize(
        ("template", "fault"),
        [
            ("{% for {{", "unexpected 'end of template' (line 1)"),
            ("a\n{{ 9 ** 9 ** 9 }}", "computes a power (`**`, line 2)"),
            ("{{ 'a' * 10000000000 }}", "computes with the number 10000000000 (line 1)"),
            ("{{ '%-9999999999d' % 1 }}", "computes with the number 9999999999 (line 1)"),
            ("{{ '{:>9999999999}'.format(1) }}", "computes with the number 9999999999 (line 1)"),
            ("{{ '%.*f' | format(99999999, 1) }}", "computes with the number 99999999 (line 1)"),
            ("{{ 'a'.ljust(9999999999) }}", "computes with the number 9999999999 (line 1)"),
        ],
    )
    def test_a_template_that_no_prompt_can_have_is_refused(self, tokenizer, template, fault):
        with pytest.raises(
            ConfigError, match=re.escape("is not a template that can be rendered: ")
        ) as raised:
            PromptEncoder(tokenizer, template)
        assert fault in str(raised.value)

    def test_large_numbers_that_fill_no_memory_are_no_fault(self):
        numbers = "{% set most = 10000000000 %}{{ 'on 2026-11-27: 20261127' % () }}{{ 'a' * 10000000 }}"
        assert template_fault("{% if messages | length < 10000000000 %}{% endif %}" + numbers) is None

    def test_a_template_that_loops_ends(self, tokenizer, monkeypatch):
        monkeypatch.setattr("strop.data.encoding.template_limits._POLL_SECONDS", 0.01)
        loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        encoder = PromptEncoder(tokenizer, "{% if tools %}" + loop + "{% endif %}a")
        monkeypatch.setattr(
            "strop.data.encoding.chat_template.limited_rendering", lambda: limited_rendering(0.1)
        )
        with pytest.raises(DataError, match=r"line 7: .* it has run for more than 0.1 s"):
            encoder.encode_all([ChatPrompt("line 7", (USER,), (TOOL,))])
        assert encoder.encode_all([ChatPrompt("line 8", (USER,))])[0].tolist(), "the next prompt is not ended"

    def test_a_prompt_of_four_megabytes_is_refused(self, tokenizer):
        long = {"role": "user", "content": "a" * 4_000_001}
        for template in ("none", "tokenizer"):
            with pytest.raises(DataError, match=r"row 3: the text has 4,000,0.. characters"):
                PromptEncoder(tokenizer, template).encode_all([ChatPrompt("row 3", (long,))])

    def test_a_prompt_without_tokens(self, tokenizer):
        prompts = [ChatPrompt("line 1", (USER,)), ChatPrompt("line 2", ({**USER, "content": ""},))]
        with pytest.raises(DataError, match="line 2: the prompt is empty"):
            PromptEncoder(tokenizer, "none").encode_all(prompts)


@pytest.mark.parametrize(("args", "expected"), [({}, "2 + 2"), ({"thinking": True}, "think: 2 + 2")])
def test_variables_of_the_template(tokenizer, args, expected):
    message = ({"role": "user", "content": "2 + 2"},)
    template = "{% if thinking %}think: {% endif %}{{ messages[0].content }}"
    encoder = PromptEncoder(tokenizer, template, args)
    assert encoder.render("here", message, (), prompt=True) == expected
    assert encoder.render_marked("here", message, ())[0] == expected


def test_memory_that_other_threads_take_is_not_a_renderings() -> None:
    rendering = _Rendering(start=1.0, limit=2.0)
    looks = ((1.01, 0), (1.05, 5 << 30), (1.5, 1 << 29), (1.5, 5 << 30), (3.5, 0))
    assert [rendering.is_beyond(*look) for look in looks] == [False, False, False, True, True]


def test_code_that_handles_the_end_of_a_template_is_not_ended_itself(monkeypatch) -> None:
    monkeypatch.setattr("strop.data.encoding.template_limits._POLL_SECONDS", 0.01)
    monkeypatch.setattr("strop.data.encoding.template_limits._AGAIN_SECONDS", 1e9)
    with limited_rendering(-1.0):
        try:
            while True:
                time.sleep(0.01)
        except TemplateTimeout:
            time.sleep(0.3)


def test_a_debugger_follows_a_program_after_a_rendering() -> None:
    program = (
        "import sys, time\n"
        "from strop.data.encoding.template_limits import TemplateTimeout, limited_rendering\n"
        "try:\n"
        "    with limited_rendering(float(sys.argv[1])):\n"
        "        while sys.argv[1] == '-1':\n"
        "            time.sleep(0.01)\n"
        "except TemplateTimeout:\n"
        "    print('ended')\n"
        "sys.settrace(lambda *_: None)\n"
        "(lambda: print('followed'))()\n"
    )
    for seconds, printed in (("60", "followed\n"), ("-1", "ended\nfollowed\n")):
        command = [sys.executable, "-c", program, seconds]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        assert done.stdout == printed
