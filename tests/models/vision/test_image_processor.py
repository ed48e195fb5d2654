"""Image processors against transformers' own: counts, tokens, positions, pixels, and faults."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Gemma3Processor,
    InternVLProcessor,
    SmolVLMProcessor,
)

from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.conversation_encoder import ConversationEncoder, TrainingConversation
from strop.errors import DataError, ModelError
from strop.models.tiny import make_model
from strop.models.vision.image_processor import GridImageProcessor, load_image_processor, mrope_positions
from strop.protocols import ImageProcessor
from strop.types import ImageReference
from tests.cases import nightly
from tests.models.vision.images import FAMILIES, image, processor_of, prompt, tokenizer_of, vision_model

BY_KIND = ("qwen2_5_vl", "gemma3", "smolvlm", "internvl")
"""A family for each kind of processor."""
SIZES = [(20, 20), (40, 30), (64, 64), (100, 50), (33, 171), (300, 200), (31, 97), (97, 31)]


def test_positions_by_hand() -> None:
    # Two text tokens, an image of 2 rows and 3 columns, one text token.
    found = mrope_positions(np.array([5, 6, 9, 9, 9, 9, 9, 9, 7], dtype=np.int32), 9, [(2, 3)])
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("family", ["qwen2_5_vl", *nightly("qwen2_vl", "qwen3_vl")])
def test_positions_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    tokenizer, processor = tokenizer_of(family), processor_of(family)
    media = [image(tmp_path, 40, 30), image(tmp_path, 100, 50), image(tmp_path, 50, 100)]
    ids = prompt(tokenizer, processor, media)
    model = AutoModelForImageTextToText.from_pretrained(vision_model(family)).model
    tokens = torch.from_numpy(ids)[None].long()
    is_image = (tokens == processor.image_token_id).int()
    grid = processor.process(media).grid
    expected, _ = model.get_rope_index(tokens, mm_token_type_ids=is_image, image_grid_thw=grid)
    assert np.array_equal(processor.positions(ids, media), expected[:, 0].numpy())


def expanded(processor: ImageProcessor, reference: ImageReference) -> list[int]:
    """Tokens of one image."""
    return processor.expand(np.array([processor.image_token_id], dtype=np.int32), [reference]).tolist()


@pytest.mark.parametrize("family", [*BY_KIND, *nightly(*(each for each in FAMILIES if each not in BY_KIND))])
def test_counts_without_pixels_are_those_of_the_pixels(family: str, tmp_path: Path) -> None:
    processor = processor_of(family)
    for size in SIZES:
        reference = image(tmp_path, *size)
        inputs, tokens = processor.process([reference]), expanded(processor, reference)
        assert processor.token_count(*size) == len(tokens)
        pads = tokens.count(processor.image_token_id)
        # Four patches are one token; a tile of 4 x 4 patches has four.
        patches = 16 * len(inputs.pixel_values) if inputs.grid is None else int(inputs.grid.prod())
        assert processor.feature_count(*size) == pads == patches // 4, size


def test_tiles_are_written_as_transformers_writes_them(tmp_path: Path) -> None:
    tokenizer, processor = tokenizer_of("smolvlm"), processor_of("smolvlm")
    oracle = SmolVLMProcessor.__new__(SmolVLMProcessor)
    oracle.image_seq_len, oracle.image_token = 4, "<image>"
    oracle.fake_image_token, oracle.global_image_token = "<fake_token_around_image>", "<global-img>"
    for width, height in SIZES:
        _, rows, columns = processor._processor.get_number_of_image_patches(height, width)  # type: ignore[attr-defined]
        text = oracle.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        expected = tokenizer.encode(text, add_special_tokens=False)
        assert expanded(processor, image(tmp_path, width, height)) == expected


def test_tiles_of_internvl_are_those_of_transformers(tmp_path: Path) -> None:
    tokenizer, processor = tokenizer_of("internvl"), processor_of("internvl")
    pixels_of = AutoImageProcessor.from_pretrained(vision_model("internvl"), backend="pil")
    oracle = InternVLProcessor.__new__(InternVLProcessor)
    oracle.image_seq_length, oracle.image_token = 4, "<IMG_CONTEXT>"
    oracle.start_image_token, oracle.end_image_token = "<img>", "</img>"
    for size in SIZES:
        reference = image(tmp_path, *size)
        pixels = pixels_of(images=[Image.open(reference.path)], crop_to_patches=True, return_tensors="pt")
        expected = tokenizer.encode(oracle.replace_image_token(pixels, 0), add_special_tokens=False)
        assert expanded(processor, reference) == expected
        assert torch.equal(processor.process([reference]).pixel_values, pixels["pixel_values"])


def test_prompts_of_gemma_are_those_of_transformers(tmp_path: Path) -> None:
    """Line breaks around an image are one token with those of the text."""
    folder, media = vision_model("gemma3"), [image(tmp_path, *size) for size in SIZES]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["\n\n", "\n\n\n"])
    processor = load_image_processor(str(folder), tokenizer)
    content = [
        part
        for each in media
        for part in ({"type": "image", "image": each}, {"type": "text", "text": "\nWhat?"})
    ]
    messages = [{"role": "user", "content": content}]
    found = PromptEncoder(tokenizer, "tokenizer", images=processor).encode(messages)
    pixels = AutoImageProcessor.from_pretrained(folder, backend="pil")
    oracle = Gemma3Processor(image_processor=pixels, tokenizer=tokenizer, image_seq_length=4)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)  # type: ignore[arg-type]
    expected = oracle(images=[[Image.open(each.path) for each in media]], text=[text], return_tensors="pt")
    assert found.tolist() == expected["input_ids"][0].tolist()
    assert tokenizer.convert_tokens_to_ids("\n\n\n") in found.tolist()
    assert torch.equal(processor.process(media).pixel_values, expected["pixel_values"])


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_prompts_that_are_encoded_together_have_the_tokens_of_each(family: str, tmp_path: Path) -> None:
    encoder = PromptEncoder(tokenizer_of(family), "tokenizer", images=processor_of(family))
    question = {"type": "text", "text": "What?"}
    pictures = [{"type": "image", "image": image(tmp_path, width, 20)} for width in (20, 30)]
    contents = [[pictures[0], question], [pictures[1], question], [question]]
    messages = [({"role": "user", "content": content},) for content in contents]
    together = encoder.encode_all([ChatPrompt("row", each) for each in messages])
    assert [each.tolist() for each in together] == [encoder.encode(each).tolist() for each in messages]
    assert len(together[0]) > len(together[2])


def test_marked_replies_after_an_image_keep_their_tokens(tmp_path: Path) -> None:
    """Gemma's images are longer than what the template writes for them, so that the template's marks move."""
    tokenizer, processor = tokenizer_of("gemma3"), processor_of("gemma3")
    template = str(tokenizer.chat_template)
    marked = template.replace(
        "{% if message['content'] is string %}{{ message['content'] }}",
        "{% if message['content'] is string %}{% generation %}{{ message['content'] }}{% endgeneration %}",
    )
    messages = (
        {"role": "user", "content": [{"type": "image", "image": image(tmp_path, 20, 20)}] * 2},
        {"role": "assistant", "content": "34"},
    )
    conversation = TrainingConversation("row 0", messages, 0)
    (plain,) = ConversationEncoder(tokenizer, "tokenizer", images=processor).encode_all([conversation])
    (found,) = ConversationEncoder(tokenizer, marked, images=processor).encode_all([conversation])
    assert found.token_ids.tolist() == plain.token_ids.tolist()
    assert tokenizer.decode(found.token_ids[found.loss_mask]) == "34<|end|>"
    assert found.loss_mask.tolist() == plain.loss_mask.tolist()


def test_pixel_limits_replace_those_of_the_model(tmp_path: Path) -> None:
    folder, tokenizer = str(vision_model("qwen2_5_vl")), tokenizer_of("qwen2_5_vl")
    processor = load_image_processor(folder, tokenizer, max_pixels=32 * 32)
    assert processor.token_count(200, 200) == 4  # 32 x 32 pixels, 16 x 16 per token
    assert len(processor.process([image(tmp_path, 200, 200)]).pixel_values) == 16
    with pytest.raises(ModelError, match="max_pixels"):
        load_image_processor(str(vision_model("smolvlm")), tokenizer_of("smolvlm"), max_pixels=100)


def test_an_image_is_processed_once(tmp_path: Path) -> None:
    processor = load_image_processor(str(vision_model("qwen2_5_vl")), tokenizer_of("qwen2_5_vl"))
    reference = image(tmp_path, 40, 30)
    first = processor.process([reference]).pixel_values
    reference.path.unlink()
    assert torch.equal(processor.process([reference]).pixel_values, first)


def test_faults_are_named(tmp_path: Path) -> None:
    processor = load_image_processor(str(vision_model("qwen2_5_vl")), tokenizer_of("qwen2_5_vl"))
    reference = image(tmp_path, 40, 30)
    with pytest.raises(DataError, match="1 image tokens, but 2 images"):
        processor.expand(np.array([processor.image_token_id], dtype=np.int32), [reference] * 2)
    with pytest.raises(DataError, match="recorded with 41 x 30"):
        processor.process([dataclasses.replace(reference, width=41)])
    with pytest.raises(DataError, match="aspect ratio"):
        processor.token_count(1000, 2)
    reference.path.write_bytes(reference.path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"40x30-0.png cannot be read"):
        processor.process([reference])


def test_crops_of_gemma_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(vision_model("gemma3"), tmp_path / "model")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_pan_and_scan": True}))
    with pytest.raises(ModelError, match="do_pan_and_scan"):
        load_image_processor(str(folder), tokenizer_of("gemma3"))


def test_a_text_model_has_no_images(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "text", ["some text"] * 5)
    with pytest.raises(ModelError, match="qwen2 model, and images need one of these"):
        load_image_processor(str(folder), AutoTokenizer.from_pretrained(folder))


def test_serving_libraries_get_one_pad_per_image_and_the_same_pixels(tmp_path: Path) -> None:
    processor = processor_of("qwen2_5_vl")
    assert isinstance(processor, GridImageProcessor)
    media = [image(tmp_path, 100, 50), image(tmp_path, 20, 60)]
    pad = processor.image_token_id
    short = np.array([5, pad, pad, 7], dtype=np.int32)
    assert processor.collapse(processor.expand(short, media), media).tolist() == short.tolist()
    for number, reference in enumerate(media):
        scaled = processor.resized(reference)
        path = tmp_path / f"scaled-{number}.png"
        scaled.save(path)
        again = processor.process([ImageReference(f"scaled-{number}", path, *scaled.size)])
        assert torch.equal(again.pixel_values, processor.process([reference]).pixel_values)
