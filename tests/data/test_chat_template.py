"""Conversion of prompts to messages, and their encoding with chat templates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.messages import to_messages, to_tools
from strop.errors import ConfigError, DataError, ModelError

USER = {"role": "user", "content": "What is 2 + 3?"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class TestMessages:
    def test_plain_text_is_one_user_message(self) -> None:
        assert to_messages("What is 2 + 3?", "row") == (USER,)

    def test_a_system_message_is_inserted_if_there_is_none(self) -> None:
        assert to_messages("What is 2 + 3?", "row", system="Be brief.") == (SYSTEM, USER)
        assert to_messages([USER], "row", system="Be brief.") == (SYSTEM, USER)
        own = {"role": "system", "content": "Be long."}
        assert to_messages([own, USER], "row", system="Be brief.") == (own, USER)

    def test_null_keys_of_parquet_are_removed(self) -> None:
        call = {"function": {"name": "add", "arguments": {"a": 2, "b": None}}, "id": None}
        assistant = {"role": "assistant", "content": None, "tool_calls": [call], "name": None}
        assert to_messages([USER | {"tool_calls": None}, assistant], "row") == (
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}],
            },
        )

    def test_content_of_text_parts(self) -> None:
        parts = {"role": "user", "content": [{"type": "text", "text": "2 + 3"}]}
        assert to_messages([parts], "row") == (parts,)

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
    def test_other_values_are_refused(self, value: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            to_messages(value, "a.jsonl line 3")

    def test_long_values_are_shortened_in_messages(self) -> None:
        with pytest.raises(DataError) as error:
            to_messages({"x": "y" * 1000}, "row")
        assert len(str(error.value)) < 300


class TestTools:
    def test_list_and_json_text(self) -> None:
        assert to_tools([TOOL], "row") == (TOOL,)
        assert to_tools('[{"type": "function"}]', "row") == ({"type": "function"},)
        assert to_tools(None, "row") == ()
        assert to_tools([TOOL | {"strict": None}], "row") == (TOOL,)

    @pytest.mark.parametrize(
        ("value", "message"), [("[{", "not JSON"), (5, "the tools are 5"), (["add"], "not a list of objects")]
    )
    def test_other_values_are_refused(self, value: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            to_tools(value, "row")


class TestEncoder:
    def test_by_the_tokenizers_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        ids = PromptEncoder(tokenizer, "tokenizer").encode([SYSTEM, USER])
        assert ids.dtype == np.int32
        text = "<|system|>\nBe brief.<|end|>\n<|user|>\nWhat is 2 + 3?<|end|>\n<|assistant|>\n"
        assert tokenizer.decode(ids) == text
        reference = tokenizer.apply_chat_template(
            [SYSTEM, USER], add_generation_prompt=True, return_dict=False
        )
        assert ids.tolist() == reference

    def test_by_a_file(self, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
        file = tmp_path / "template.jinja"
        file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}>")
        ids = PromptEncoder(tokenizer, str(file)).encode([USER])
        assert tokenizer.decode(ids) == "[user] What is 2 + 3?\n>"

    def test_tools_reach_the_template(self, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
        file = tmp_path / "template.jinja"
        file.write_text(
            "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}"
        )
        encoder = PromptEncoder(tokenizer, str(file))
        assert tokenizer.decode(encoder.encode([USER], (TOOL,))) == "add What is 2 + 3?"
        assert tokenizer.decode(encoder.encode([USER])) == "What is 2 + 3?"

    def test_none_encodes_plain_text_without_a_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        ids = PromptEncoder(tokenizer, "none").encode([USER])
        assert ids.tolist() == tokenizer.encode("What is 2 + 3?")
        assert tokenizer.decode(ids) == "What is 2 + 3?"

    def test_none_adds_the_tokenizers_special_tokens(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from tokenizers.processors import TemplateProcessing

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
    def test_none_takes_one_plain_text_only(
        self, tokenizer: PreTrainedTokenizerBase, messages: Any, tools: Any, message: str
    ) -> None:
        with pytest.raises(DataError, match=message):
            PromptEncoder(tokenizer, "none").encode(messages, tools)

    def test_encode_all_equals_encode(self, tokenizer: PreTrainedTokenizerBase) -> None:
        encoder = PromptEncoder(tokenizer, "tokenizer")
        prompts = [ChatPrompt(f"row {i}", ({"role": "user", "content": "one " * i},)) for i in range(20)]
        for prompt, ids in zip(prompts, encoder.encode_all(prompts), strict=True):
            assert ids.tolist() == encoder.encode(prompt.messages).tolist()

    def test_a_tokenizer_without_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        bare = copy.deepcopy(tokenizer)
        bare.chat_template = None
        with pytest.raises(ModelError, match=r"has no chat template.*Write data\.chat_template: none"):
            PromptEncoder(bare, "tokenizer")
        assert len(PromptEncoder(bare, "none").encode([USER]))

    def test_a_missing_file(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with pytest.raises(ConfigError, match=r"data\.chat_template: nope\.jinja cannot be read"):
            PromptEncoder(tokenizer, "nope.jinja")

    @pytest.mark.parametrize(
        "template",
        [
            "{% for",
            "{{ raise_exception('only users') }}",
            "{{ 'a' + messages[0].nope.more }}",
            "{{ 1 + 'a' }}",
        ],
    )
    def test_a_template_that_fails_names_the_row(
        self, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, template: str
    ) -> None:
        file = tmp_path / "template.jinja"
        file.write_text(template)
        encoder = PromptEncoder(tokenizer, str(file))
        with pytest.raises(DataError, match="line 7: the chat template cannot render this prompt: "):
            encoder.encode_all([ChatPrompt("a.jsonl line 7", (USER,))])

    def test_a_prompt_without_tokens(self, tokenizer: PreTrainedTokenizerBase) -> None:
        with pytest.raises(DataError, match="line 2: the prompt is empty"):
            PromptEncoder(tokenizer, "none").encode_all(
                [ChatPrompt("line 1", (USER,)), ChatPrompt("line 2", ({"role": "user", "content": ""},))]
            )


def test_variables_of_the_template(tokenizer: PreTrainedTokenizerBase) -> None:
    template = "{% if thinking %}think: {% endif %}{{ messages[0].content }}"
    message = ({"role": "user", "content": "2 + 2"},)
    for args, expected in (({}, "2 + 2"), ({"thinking": True}, "think: 2 + 2")):
        encoder = PromptEncoder(tokenizer, template, args)
        assert encoder.render("here", message, (), prompt=True) == expected
        assert encoder.render_marked("here", message, ())[0] == expected
