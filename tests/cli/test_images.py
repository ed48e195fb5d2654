"""`strop check` and `strop explain` of runs with images, without the weights of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import strop
from strop.config.checks.data import image_engine_fault
from strop.config.schema.rollout import RolloutConfig
from tests.cli.conftest import Cli
from tests.data.images.pictures import encoded


@pytest.fixture
def with_images(run_file: Path) -> Path:
    """A run file whose one row has an image."""
    folder = run_file.parent
    (folder / "red.png").write_bytes(encoded())
    (folder / "train.jsonl").write_text('{"prompt": "<image>What?", "answer": "2", "image": "red.png"}\n')
    return run_file


def shown(cli: Cli, *words: object) -> str:
    """Output of a command, in one line."""
    return " ".join(cli(*words).output.split())


@pytest.mark.parametrize("marker", ["<video>", "<audio>"])
def test_other_media_are_refused_by_name(cli: Cli, run_file: Path, marker: str) -> None:
    row = json.dumps({"prompt": f"{marker}What?", "answer": "2"})
    (run_file.parent / "train.jsonl").write_text(row + "\n")
    words = ("check", run_file, "data.incomplete_batch=keep")
    refused = cli(*words)
    assert refused.exit_code == 2
    assert f"train.jsonl line 1: the messages have the marker {marker!r}" in refused.output
    assert cli(*words, "data.images.marker=null").exit_code == 0
    named = cli("check", run_file, f"data.train.{marker[1:-1]}s=clips")
    assert "Strop trains on text and images, and not on video or audio" in named.output


def test_a_model_that_reads_text_only(cli: Cli, with_images: Path) -> None:
    """Every taskset of a mixture is checked."""
    (with_images.parent / "second.jsonl").write_text('{"prompt": "What?", "answer": "2"}\n')
    mixed = "data.train=[{path: second.jsonl}, {path: train.jsonl}]"
    for overrides, faults in (
        ([], ["the messages have a place for an image", "data.images.marker: null"]),
        ([mixed, "data.incomplete_batch=keep"], ["the messages have a place for an image"]),
        (["data.train.images=image"], ["has images (column 'image'), but the model reads text only"]),
    ):
        refused = cli("check", with_images, *overrides)
        assert refused.exit_code == 2
        assert all(fault in refused.output for fault in ["train.jsonl line 1", *faults])
    assert cli("check", with_images, "data.images.marker=null", "data.incomplete_batch=keep").exit_code == 0


def test_the_cost_of_an_image_is_explained(cli: Cli, with_images: Path) -> None:
    processor = {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1003520}
    (with_images.parent / "m/preprocessor_config.json").write_text(json.dumps(processor))
    words = ("explain", with_images, "data.train.images=image")
    cost = "one token per 28 x 28 pixels, 4 to 1,280 tokens of data.max_prompt_tokens (1,024)"
    assert cost in shown(cli, *words)
    reduced = shown(cli, *words, "data.images.max_pixels=78400")
    assert "4 to 100 tokens" in reduced and "reduced to 78,400 pixels" in reduced
    (with_images.parent / "m/preprocessor_config.json").unlink()
    assert "the model's preprocessor_config.json decides" in shown(cli, *words)
    assert "image is" not in shown(cli, "explain", with_images).partition("field value")[0]


_VISION = {"patch_size": 8, "image_size": 32}
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
_FAMILIES = {
    "gemma3": ({"mm_tokens_per_image": 256}, {}, "an image is 256 tokens whatever its size"),
    "internvl": ({"image_seq_length": 256}, {"max_patches": 6}, "256 tokens per tile, 1 to 6 tiles"),
    "smolvlm": ({"scale_factor": 2}, TILES, "4 tokens per tile, at most 4 tiles"),
}


@pytest.mark.parametrize("family", _FAMILIES)
def test_engines_without_the_images_of_a_family(cli: Cli, with_images: Path, family: str) -> None:
    config, processor, cost = _FAMILIES[family]
    folder = with_images.parent / "m"
    config = {**config, "model_type": family, "vision_config": _VISION}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    words = ("explain", with_images, "data.train.images=image")
    with_vllm = shown(cli, *words, "rollout.engine=vllm")
    assert cost in with_vllm and f"vllm gets no images of {family} models" in with_vllm
    assert "gets no images" not in shown(cli, *words, "rollout.engine=native")


@pytest.mark.parametrize(
    ("family", "patch", "engine", "message"),
    [
        ("gemma3", 14, {"type": "vllm"}, "Write `rollout.engine: native`"),
        ("internvl", 14, {"type": "sglang"}, "Write `rollout.engine: native`"),
        ("qwen2_5_vl", 8, {"type": "sglang"}, "patches of 14 x 14 pixels only"),
        ("qwen2_5_vl", 8, {"type": "vllm"}, None),
        ("qwen2_5_vl", 14, {"type": "sglang"}, None),
        ("qwen3_vl", 16, {"type": "sglang"}, None),
        ("qwen3_vl", 16, {"type": "sglang_server", "base_url": "http://h:1"}, "sends text to a server"),
        ("gemma3", 14, {"type": "native"}, None),
        ("gemma3", 14, {"type": "auto"}, None),
    ],
)
def test_engines_that_take_the_images_of_a_model(
    run_file: Path, family: str, patch: int, engine: dict[str, str], message: str | None
) -> None:
    folder = run_file.parent / "m"
    config = {"model_type": family, "vision_config": {"patch_size": patch}}
    (folder / "config.json").write_text(json.dumps(config))
    run = strop.load(run_file).run
    model = run.model.model_copy(update={"path": str(folder)})
    rollout = RolloutConfig.model_validate({"engine": engine})
    run = run.model_copy(update={"model": model, "rollout": rollout})
    fault = image_engine_fault(run)
    assert fault is None if message is None else fault is not None and message in fault
