"""`strop check` and `strop explain` of runs with images, without the weights of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.data.images.pictures import encoded


@pytest.fixture
def with_images(run_file: Path) -> Path:
    """A run file whose one row has an image."""
    folder = run_file.parent
    (folder / "red.png").write_bytes(encoded())
    (folder / "train.jsonl").write_text('{"prompt": "<image>What?", "answer": "2", "image": "red.png"}\n')
    return run_file


def test_a_model_that_reads_text_only(cli: Cli, with_images: Path) -> None:
    unnamed = cli("check", with_images)
    assert unnamed.exit_code == 2
    assert "train.jsonl line 1: the messages have a place for an image" in unnamed.output
    assert "data.images.marker: null" in unnamed.output
    named = cli("check", with_images, "data.train.images=image")
    assert named.exit_code == 2
    assert "train.jsonl line 1 has images (column 'image'), but the model reads text only" in named.output
    assert cli("check", with_images, "data.images.marker=null", "data.incomplete_batch=keep").exit_code == 0


def test_the_cost_of_an_image_is_explained(cli: Cli, with_images: Path) -> None:
    processor = {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1003520}
    (with_images.parent / "m/preprocessor_config.json").write_text(json.dumps(processor))
    words = ("explain", with_images, "data.train.images=image")
    shown = " ".join(cli(*words).output.split())
    assert "one token per 28 x 28 pixels, 4 to 1,280 tokens of data.max_prompt_tokens (1,024)" in shown
    shown = " ".join(cli(*words, "data.images.max_pixels=78400").output.split())
    assert "4 to 100 tokens" in shown and "reduced to 78,400 pixels" in shown
    (with_images.parent / "m/preprocessor_config.json").unlink()
    assert "the model's preprocessor_config.json decides" in " ".join(cli(*words).output.split())
    assert "image is" not in " ".join(cli("explain", with_images).output.split()).partition("field value")[0]
