"""Tasks and demonstrations with images: tokens, lengths, truncation, and rows that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.data.images.prompt_images import RunImages
from strop.data.offline_dataset import OfflineDataset, load_offline_dataset
from strop.data.taskset import TaskSet, load_taskset
from strop.errors import DataError
from strop.models.tiny import make_tokenizer
from tests.data.conftest import WriteLines
from tests.data.images.pictures import encoded, prompt_images

PAD = "<|image_pad|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    f"{{% if part['type'] == 'image' %}}{PAD}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}{{% endfor %}}"
    "{% endif %}{% if message['role'] == 'assistant' %}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
RED, BLUE = encoded("red", (8, 8)), encoded("blue", (16, 8))
"""4 and 8 tokens."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(folder, ["What is it? A red square."], vocab_size=400)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [PAD]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Data:
    """Loads rows from Parquet with one tokenizer; keywords are keys of the section, `data` those of `DataConfig`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        self.tokenizer = tokenizer
        self.folder = folder
        self.pad: int = tokenizer.convert_tokens_to_ids(PAD)

    def images(self, **settings: Any) -> RunImages:
        return prompt_images(self.folder / "images", self.pad, **settings)

    def section(self, rows: list[dict[str, Any]], **section: Any) -> TasksetConfig:
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "d.parquet")
        return TasksetConfig(path=str(self.folder / "d.parquet"), **{"images": "images", **section})

    def tasks(
        self, rows: list[dict[str, Any]], data: dict[str, Any] | None = None, **section: Any
    ) -> TaskSet:
        taskset = self.section(rows, answer=None, **section)
        settings = DataConfig(train=taskset, **(data or {}))
        images = self.images(**settings.images.model_dump())
        return load_taskset(taskset, settings, self.tokenizer, seed=0, shuffle=False, images=images)

    def answers(self, rows: list[dict[str, Any]], **section: Any) -> OfflineDataset:
        taskset = self.section(rows, **section)
        options = {"name": "train", "seed": 0, "shuffle": False, "images": self.images()}
        return load_offline_dataset(taskset, DataConfig(train=taskset), self.tokenizer, **options)


@pytest.fixture
def data(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Data:
    return Data(tokenizer, tmp_path)


def hugging_face(*contents: bytes) -> list[dict[str, Any]]:
    """Images as `datasets` writes them to Parquet."""
    return [{"bytes": content, "path": None} for content in contents]


def question(*contents: bytes) -> dict[str, Any]:
    return {"prompt": "<image>" * len(contents) + "What is it?", "images": hugging_face(*contents)}


def test_a_prompt_has_all_tokens_of_its_images(data: Data) -> None:
    rows = [
        question(RED) | {"level": 3},
        {"prompt": "What <image> is <image>it?", "images": hugging_face(BLUE, RED), "level": 4},
        {"prompt": "What is it?", "images": [], "level": 5},
        {"prompt": "What is it?", "images": None, "level": 6},
    ]
    tasks = data.tasks(rows).all_tasks()
    assert [int((task.prompt_ids == data.pad).sum()) for task in tasks] == [4, 12, 0, 0]
    assert [len(task.media) for task in tasks] == [1, 2, 0, 0]
    assert tasks[0].media[0] == tasks[1].media[1]
    assert len(list((data.folder / "images").iterdir())) == 2  # the red one is stored once
    expected = data.tokenizer(f"user: {PAD * 4}What is it?assistant: ", add_special_tokens=False)["input_ids"]
    assert tasks[0].prompt_ids.tolist() == expected
    assert tasks[0].extra == {"images": [str(tasks[0].media[0].path)], "level": 3}


def test_paths_are_relative_to_the_data_file(data: Data, write_lines: WriteLines) -> None:
    (data.folder / "red.png").write_bytes(RED)
    rows = [{"prompt": "<image>What is it?", "image": "red.png"}, {"prompt": "What is it?"}]
    file = write_lines("d.jsonl", rows)
    section = TasksetConfig(path=str(file), images="image", optional_columns=("image",), answer=None)
    settings = DataConfig(train=section)
    tasks = load_taskset(section, settings, data.tokenizer, seed=0, shuffle=False, images=data.images())
    assert [len(task.media) for task in tasks.all_tasks()] == [1, 0]


def test_parts_of_messages_may_name_their_images(data: Data) -> None:
    (data.folder / "red.png").write_bytes(RED)
    content = [{"type": "image_url", "image_url": {"url": "red.png"}, "text": None}]
    content += [{"type": "text", "text": "What is it?", "image_url": None}]
    (task,) = data.tasks([{"prompt": [{"role": "user", "content": content}]}], images=None).all_tasks()
    assert (task.prompt_ids == data.pad).sum() == 4


@pytest.mark.slow
def test_several_processes_encode_the_same(data: Data) -> None:
    rows = [question(RED)] * 3
    alone, together = (data.tasks(rows, {"tokenize_workers": workers}).all_tasks() for workers in (1, 2))
    assert [t.prompt_ids.tolist() for t in alone] == [t.prompt_ids.tolist() for t in together]


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("What is it?", hugging_face(RED), r"row 0 .*have 0 places .* the row has 1 image[.]"),
        ("<image>", hugging_face(RED[:50]), r"row 0 \(counting from 0\), image 1 cannot be decoded"),
        ("<image>", ["nope.png"], r"row 0 \(counting from 0\), image 1: there is no file .*nope.png"),
        (f"<image>{PAD}", hugging_face(RED), "row 0 .*: The prompt has 2 image tokens for 1"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(data: Data, prompt: str, images: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.tasks([{"prompt": prompt, "images": images}])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("images", "row 0 .* has images .column 'images'.*reads text only"),
        (None, "trained on the marker as text"),
    ],
)
def test_a_model_that_reads_text_only_never_gets_the_marker(
    data: Data, images: str | None, message: str
) -> None:
    section = data.section([question(RED)], images=images, answer=None)
    with pytest.raises(DataError, match=message):
        load_taskset(section, DataConfig(train=section), data.tokenizer, seed=0, shuffle=False)
    if images is None:
        as_text = DataConfig(train=section, images={"marker": None})
        tasks = load_taskset(section, as_text, data.tokenizer, seed=0, shuffle=False)
        assert "<image>" in data.tokenizer.decode(tasks.all_tasks()[0].prompt_ids)


def test_the_length_of_a_prompt_counts_the_tokens_of_its_images(data: Data) -> None:
    rows = [question(RED), question(BLUE)]
    length = len(data.tasks(rows).all_tasks()[0].prompt_ids)
    tasks = data.tasks(rows, {"max_prompt_tokens": length, "overlong": "filter"})
    assert (len(tasks), tasks.num_overlong) == (1, 1)
    with pytest.raises(DataError, match=f"has {length + 4} tokens, more than data.max_prompt_tokens"):
        data.tasks(rows, {"max_prompt_tokens": length})


def test_truncation_never_cuts_an_image(data: Data) -> None:
    text = "What is it? A red square. " * 3
    rows = [{"prompt": f"<image>{text}", "images": hugging_face(BLUE)}]
    length = len(data.tasks(rows).all_tasks()[0].prompt_ids)
    (kept,) = data.tasks(rows, {"max_prompt_tokens": length - 6, "overlong": "right"}).all_tasks()
    assert (kept.prompt_ids == data.pad).sum() == 8
    cut = f"{length} tokens are too many, and truncation to {length - 6} would cut"
    with pytest.raises(DataError, match=cut):
        data.tasks(rows, {"max_prompt_tokens": length - 6, "overlong": "left"})


def test_demonstrations_with_images(data: Data) -> None:
    rows = [question(RED) | {"response": "A red square."}]
    (group,) = data.answers(rows, response="response").all_groups()
    (experience,) = group.experiences
    assert (experience.token_ids == data.pad).sum() == 4
    assert len(experience.media) == 1
    trained = experience.token_ids[experience.loss_mask]
    assert data.tokenizer.decode(trained) == "A red square.<|end|>"


def test_demonstrations_with_images_in_several_turns(data: Data) -> None:
    turns = ["<image>What is it?", "A red square.", "And <image>?", "A square."]
    roles = ["user", "assistant"] * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    rows = [{"messages": messages, "images": hugging_face(RED, BLUE)}]
    (group,) = data.answers(rows, response="messages").all_groups()
    (experience,) = group.experiences
    trained = data.tokenizer.decode(experience.token_ids[experience.loss_mask])
    assert trained == "A red square.<|end|>A square.<|end|>"
    assert not (experience.loss_mask & (experience.token_ids == data.pad)).any()
    assert len(experience.media) == 2


def test_pairs_with_images_share_the_prompt(data: Data) -> None:
    row = question(RED) | {"chosen": "A red square.", "rejected": "A square."}
    (group,) = data.answers([row], chosen="chosen", rejected="rejected").all_groups()
    chosen, rejected = group.experiences
    shared = chosen.prompt_tokens
    assert np.array_equal(chosen.token_ids[:shared], rejected.token_ids[:shared])
    assert chosen.media == rejected.media and len(chosen.media) == 1


def test_a_conversation_continues_with_an_image(data: Data) -> None:
    encoder = TurnEncoder(data.tokenizer, "tokenizer", images=data.images())
    messages = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A red"}]
    answer = {"role": "tool", "content": [{"type": "image", "image": BLUE}]}
    (new,) = encoder.read_images([answer], "the tool")
    ids = encoder.encode_continuation(messages, [new], (), np.array([5], np.int32))
    assert (ids == data.pad).sum() == 8


def test_a_template_that_renders_parts_only_gets_parts(data: Data) -> None:
    only_parts = (
        "{% for message in messages %}{% for part in message['content'] %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    encoder = TurnEncoder(data.tokenizer, only_parts, images=data.images())
    ids = encoder.encode_prompt([{"role": "user", "content": "What is it?"}])
    assert data.tokenizer.decode(ids) == "What is it?"
