"""Shapes of prompts and answers: JSON text, parts, nulls, a last message of the assistant, rendered and raw text."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.conversation_encoder import ConversationEncoder, TrainingConversation
from strop.data.encoding.messages import listed, messages_in_text, to_messages, to_tools
from strop.data.offline_dataset import load_offline_dataset
from strop.data.sources import files
from strop.data.sources.columns import messages_at, row_tools
from strop.data.sources.hub import read_saved_dataset
from strop.data.sources.reader import read_rows
from strop.data.taskset import load_taskset
from strop.errors import DataError, ModelError
from strop.runs.rollout_file import prompt_text

USER = {"role": "user", "content": "2 + 2?"}
THOUGHT = {"role": "assistant", "content": "Let me"}
TOOL = {"role": "tool", "content": None}
ASKED = "<|user|>\n2 + 2?<|end|>\n<|assistant|>\n"
CALL = {"type": "function", "function": {"name": "f", "arguments": {"unit": None}}, "id": None}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
PRINTS = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TEMPLATES = {
    "prints": PRINTS,
    "trims": PRINTS.replace("m.content", "m.content | trim"),
    "adds": PRINTS.replace("{{ m.content }}", "{{ '' + m.content }}"),
}


def dataset(
    tokenizer: Any, write_lines: Any, rows: list[Any], data: dict[str, Any] | None = None, **section: Any
) -> Any:
    taskset = TasksetConfig(path=str(write_lines("rows.jsonl", rows)), **section)
    settings = DataConfig(train=taskset, **(data or {}))
    if taskset.is_offline:
        return load_offline_dataset(taskset, settings, tokenizer, name="train", seed=1, shuffle=False)
    return load_taskset(taskset, settings, tokenizer, seed=1, shuffle=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (json.dumps([USER, THOUGHT]), [USER, THOUGHT]),
        (f"\n {json.dumps([USER])}", [USER]),
        (json.dumps(USER), [USER]),
        (json.dumps([{"from": "human", "value": "hi"}]), [{"from": "human", "value": "hi"}]),
        # Text that only looks like it stays text.
        *(
            (text, text)
            for text in (
                "[1, 2]",
                "[]",
                '[{"from": "a", "to": "b"}]',
                '{"role": "admin"}',
                "[USER]: hi",
                "{'type': 'dog'} is a dict. Its keys?",
                "The messages are [{'role': 'user'}]",
                "[{'from': 'USD', 'to': 'EUR'}]",
                "[{'role': 'admin', 'name': 'x'}]",
                "",
            )
        ),
    ],
)
def test_messages_as_json_text(text, value):
    assert messages_in_text(text, "row") == value
    assert to_messages(listed(text), "row") == ({"role": "user", "content": text},), (
        "a workflow's text is text"
    )


@pytest.mark.parametrize(
    "text",
    [
        str([USER]),
        str(USER),
        str([{"content": "hi", "role": "user"}]),
        "array([{'content': 'hi', 'role': 'user'}], dtype=object)",
        "[{'content': 'a', 'role': 'system'}\n {'content': 'hi', 'role': 'user'}]",
        str([{"type": "text", "text": "hi"}]),
        str([{"from": "human", "value": "hi"}]),
    ],
)
def test_messages_as_python_prints_them_are_refused(text):
    with pytest.raises(DataError, match=r"^a.jsonl line 3: .*as Python prints it.*json.dumps"):
        messages_in_text(text, "a.jsonl line 3")
    with pytest.raises(DataError, match="as Python prints it"):
        to_messages([{**USER, "content": text}] if "'type'" in text else text, "row")


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({**USER, "content": [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]}, "2 + 2?"),
        ({"role": "assistant", "content": [{"type": "text", "text": "hello"}]}, "hello"),
        ({"role": "system", "content": None}, ""),
        ({"role": "tool", "content": []}, ""),
        (CALLS, ""),
        ({"role": "assistant", "content": None, "reasoning_content": "easy"}, ""),
        ({"role": "assistant", "tool_calls": [CALL]}, ""),
        ({"role": "tool", "content": True}, "true"),
    ],
)
def test_contents_become_text(message, content):
    assert to_messages([message], "row")[0]["content"] == content


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": None}, "row, message 1, of the role user, has null as its content"),
        ({"role": "user", "content": []}, r"has \[\] as its content"),
        ({"role": "assistant", "content": None}, "tool_calls or reasoning_content instead"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "has null as its content"),
        ({"role": "system"}, "must have a role and a content"),
        ({"role": "user", "content": 5}, "has the content 5, which is neither text nor a list"),
        ({"role": "user", "content": {"text": "hi"}}, "neither text nor a list of parts"),
        ({**CALLS, "tool_calls": "f()"}, "has the tool_calls 'f"),
    ],
)
def test_other_contents_are_refused(message, said):
    with pytest.raises(DataError, match=said):
        to_messages([message], "row")


@pytest.mark.parametrize("template", TEMPLATES)
def test_null_never_becomes_a_word(tokenizer, template):
    messages = to_messages([{"role": "system", "content": None}, USER, CALLS, TOOL, THOUGHT], "row")
    encoder = ConversationEncoder(tokenizer, TEMPLATES[template])
    (found,) = encoder.encode_all([TrainingConversation("row", messages, 0)])
    text = tokenizer.decode(found.token_ids)
    assert "None" not in text and '<|assistant|>\n{"unit": null}<|end|>' in text
    assert "None" not in tokenizer.decode(PromptEncoder(tokenizer, TEMPLATES[template]).encode(messages[:4]))


RESULT = {"city": "R\u00f6m", "days": [1, None], "wet": True}
AS_JSON = '{"city": "R\u00f6m", "days": [1, null], "wet": true}'


@pytest.mark.parametrize(
    "shown",
    [
        "m.content",
        "m.content | string",
        "m.content ~ ''",
        "m.content if m.content is string else m.content | tojson",
    ],
)
def test_objects_of_messages_print_as_json(tokenizer, shown):
    """A tool's result and a call's arguments: `None`, `True` and single quotes are Python's."""
    calls = {**CALLS, "content": "", "tool_calls": [{"function": {"name": "f", "arguments": RESULT}}]}
    messages = (USER, calls, {"role": "tool", "content": RESULT}, THOUGHT)
    for arguments in ("c.function.arguments", "c.function.arguments | tojson"):
        template = PRINTS.replace("m.content", shown).replace("c.function.arguments | tojson", arguments)
        (found,) = ConversationEncoder(tokenizer, template).encode_all(
            [TrainingConversation("row", messages, 0)]
        )
        assert tokenizer.decode(found.token_ids).count(AS_JSON) == 2
        prompts = [ChatPrompt("row", messages[:3])] * 2
        for ids in PromptEncoder(tokenizer, template).encode_all(prompts):
            assert tokenizer.decode(ids).count(AS_JSON) == 2


ROW = {
    "messages": [USER, {**CALLS, "tool_calls": [{**CALL, "id": "1"}]}, {"role": "tool", "content": "4"}],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"default": None, "enum": ["C", None]}}}
    ],
}


def test_the_nulls_of_json_stay_and_those_of_tables_go(tmp_path, write_lines, monkeypatch):
    section = TasksetConfig(path="", tools="tools")

    def read(path: Any) -> tuple[Any, Any]:
        rows = read_rows(TasksetConfig(path=str(path)))
        found = [
            (messages_at(row, "messages", "row"), to_tools(row_tools(row, "row", section), "row"))
            for row in rows.scan([*ROW])
        ]
        assert found == [
            (messages_at(rows[0], "messages", "row"), to_tools(row_tools(rows[0], "row", section), "row"))
        ]
        return found[0]

    lines = write_lines("a.jsonl", [ROW])
    packed = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([ROW]), packed)
    saved = tmp_path / "saved"
    datasets.Dataset.from_list([ROW]).save_to_disk(str(saved))
    text = write_lines("b.jsonl", [{key: json.dumps(value) for key, value in ROW.items()}])
    for small in (True, False):
        if not small:
            monkeypatch.setattr(files, "MAPPED_FROM_BYTES", 1)
        for path in (lines, text):
            messages, (tool,) = read(path)
            assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"unit": None}
            assert tool["function"]["parameters"] == {"default": None, "enum": ["C", None]}
        messages, (tool,) = read(packed)
        assert messages[0] == {**USER, "tool_calls": None} and messages[1]["content"] is None
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == {}
        assert tool["function"]["parameters"] == {"enum": ["C", None]}
    (row,) = read_saved_dataset(str(saved), "saved", None, None).scan([*ROW])
    assert messages_at(row, "messages", "row") == messages
    assert to_messages(messages, "row")[1]["tool_calls"] == [
        {**CALL, "id": "1", "function": {"name": "f", "arguments": {}}}
    ]


@pytest.mark.parametrize(
    ("rows", "section", "prompts"),
    [
        ([json.dumps([USER])], {}, [ASKED]),
        ([[{**USER, "content": [{"type": "text", "text": "2 + 2?"}]}]], {}, [ASKED]),
        # A marked beginning is continued, also next to prompts without one.
        ([[USER, {**THOUGHT, "prefix": True}], [USER]], {}, [ASKED + "Let me", ASKED]),
        ([[USER, THOUGHT]], {"final_assistant": "continue", "reply_prefix": " see"}, [ASKED + "Let me see"]),
        ([[USER, THOUGHT, THOUGHT], [USER]], {"final_assistant": "drop"}, [ASKED, ASKED]),
    ],
)
def test_the_prompt_and_its_record(tokenizer, write_lines, rows, section, prompts):
    tasks = dataset(
        tokenizer, write_lines, [{"prompt": row} for row in rows], answer=None, **section
    ).all_tasks()
    assert [tokenizer.decode(task.prompt_ids) for task in tasks] == prompts
    for task, prompt in zip(tasks, prompts, strict=True):
        begun = prompt.removeprefix(ASKED).removesuffix(section.get("reply_prefix", ""))
        shown = f"[user]\n2 + 2?\n\n[assistant]\n{begun}" if begun else "2 + 2?"
        assert prompt_text(task) == shown, "strop show prints what the model was given"
        assert not isinstance(task.prompt_value, str), "JSON text of messages is no text prompt"
        assert all("prefix" not in message for message in task.messages)


@pytest.mark.parametrize(
    ("prompt", "section", "said"),
    [
        (
            [USER, THOUGHT],
            {},
            "line 1: the prompt ends with a message of the assistant, 'Let me'.*final_assistant: drop",
        ),
        ([THOUGHT], {"final_assistant": "drop"}, "ends with a message of the assistant"),
        ([USER, {**CALLS, "prefix": True}], {}, "has tool calls or images, and cannot be continued"),
        (str([USER]), {}, "line 1: the text is a list of messages or parts as Python prints it"),
        (
            ASKED,
            {},
            r"line 1: the prompt is text with '<\|assistant\|>', .*rendered twice.*data.chat_template: none",
        ),
    ],
)
def test_prompts_that_are_refused(tokenizer, write_lines, prompt, section, said):
    with pytest.raises(DataError, match=said):
        dataset(tokenizer, write_lines, [{"prompt": prompt}], answer=None, **section)
    if section == {} and isinstance(prompt, str):
        with pytest.raises(DataError, match=said):
            dataset(tokenizer, write_lines, [{"prompt": prompt, "r": "4"}], response="r")


def test_text_that_a_template_without_special_tokens_has_rendered(tokenizer):
    encoder = PromptEncoder(tokenizer, "Q: {{ messages[-1].content }}\nA:")
    with pytest.raises(DataError, match="the prompt is text with 'A:'"):
        encoder.encode_all([ChatPrompt("row", ({**USER, "content": "Q: 2 + 2?\nA: "},), is_text=True)])
    for text, is_text in (("Which? A: one B: two", True), ("What is A:", True), ("Q: 2?\nA:", False)):
        assert encoder.encode_all([ChatPrompt("row", ({**USER, "content": text},), is_text=is_text)])


def test_rendered_text_is_read_without_a_template(tokenizer, write_lines):
    (task,) = dataset(
        tokenizer, write_lines, [{"prompt": ASKED}], {"chat_template": "none"}, answer=None
    ).all_tasks()
    assert tokenizer.decode(task.prompt_ids) == ASKED == prompt_text(task)


RAW = {"text_prompts": "raw"}


class TestRawText:
    """TRL's standard format: text is encoded as it is, next to messages in the chat template."""

    def test_prompts(self, tokenizer, write_lines):
        rows = [{"prompt": "2 + 2?"}, {"prompt": [USER]}, {"prompt": ASKED}]
        tasks = dataset(tokenizer, write_lines, rows, RAW, answer=None).all_tasks()
        assert [tokenizer.decode(task.prompt_ids) for task in tasks] == ["2 + 2?", ASKED, ASKED]
        assert [type(task.prompt_value) for task in tasks] == [str, list, str]

    def test_special_tokens_are_those_of_the_tokenizer(self, tokenizer):
        from tokenizers.processors import TemplateProcessing

        begun = deepcopy(tokenizer)
        begun.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|system|> $A", special_tokens=[("<|system|>", 2)]
        )
        encoder = PromptEncoder(begun, "tokenizer", raw_text=True)
        prompts = [ChatPrompt("row", (USER,), is_text=is_text) for is_text in (True, False)]
        assert [ids[0] == 2 for ids in encoder.encode_all(prompts)] == [True, False]
        whole = [len(ids) for ids in encoder.encode_all(prompts)]
        assert encoder.encode_longer(prompts, 100) == [None, None]
        assert [None if ids is None else len(ids) for ids in encoder.encode_longer(prompts, 1)] == whole

    @pytest.mark.parametrize(
        ("row", "columns", "texts"),
        [
            (
                {"prompt": "The sky is", "r": " blue."},
                {"response": "r"},
                [("The sky is blue.<|end|>", " blue.<|end|>")],
            ),
            (
                {"prompt": [USER], "r": [{**THOUGHT, "content": "4"}]},
                {"response": "r"},
                [(ASKED + "4<|end|>", "4<|end|>")],
            ),
            (
                {"c": "\n\nHuman: hi\n\nAssistant: hello", "r": "\n\nHuman: hi\n\nAssistant: go"},
                {"chosen": "c", "rejected": "r"},
                [
                    ("\n\nHuman: hi\n\nAssistant: hello<|end|>", " hello<|end|>"),
                    ("\n\nHuman: hi\n\nAssistant: go<|end|>", " go<|end|>"),
                ],
            ),
        ],
    )
    def test_answers(self, tokenizer, write_lines, row, columns, texts):
        (group,) = dataset(tokenizer, write_lines, [row], RAW, **columns).all_groups()
        found = [(e.token_ids, e.token_ids[e.loss_mask]) for e in group.experiences]
        assert [tuple(map(tokenizer.decode, pair)) for pair in found] == texts

    @pytest.mark.parametrize(
        ("row", "section", "data", "said"),
        [
            (
                {"prompt": "a"},
                {"system": "Count."},
                RAW,
                "text_prompts: raw encodes .* has messages of system, user",
            ),
            (
                {"prompt": "a", "r": [THOUGHT, USER, THOUGHT]},
                {"response": "r"},
                RAW,
                "raw encodes a plain prompt and a plain answer",
            ),
            (
                {"c": "a b", "r": "a c"},
                {"chosen": "c", "rejected": "r"},
                {},
                "line 1 has no column 'prompt'.*text_prompts",
            ),
            ({"c": "b", "r": "c"}, {"chosen": "c", "rejected": "r"}, RAW, "no prompt that they share"),
        ],
    )
    def test_rows_that_are_refused(self, tokenizer, write_lines, row, section, data, said):
        with pytest.raises(DataError, match=said):
            dataset(tokenizer, write_lines, [row], data, **({"answer": None} | section))

    def test_a_tokenizer_without_a_template_encodes_text_only(self, tokenizer):
        bare = deepcopy(tokenizer)
        bare.chat_template = None
        encoder = PromptEncoder(bare, "tokenizer", raw_text=True)
        assert len(encoder.encode_all([ChatPrompt("row", (USER,), is_text=True)])[0])
        with pytest.raises(ModelError, match="has no chat template"):
            encoder.encode([USER])
        (found,) = ConversationEncoder(bare, "tokenizer", raw_text=True).encode_all(
            [TrainingConversation("row", (USER, THOUGHT), 1, prompt_is_text=True)]
        )
        assert tokenizer.decode(found.token_ids) == "2 + 2?Let me<|end|>"
