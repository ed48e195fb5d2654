"""Images of a run's prompts: the model's processor, and the folder of the run that stores them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strop.config.checks.data import image_engine_fault
from strop.config.model_files import IMAGE_FAMILIES, folder_takes_images
from strop.config.paths import existing_path
from strop.config.schema.data import ImagesConfig, TasksetConfig
from strop.config.schema.generation import GenerationConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.run import Run
from strop.data.images.prompt_images import RunImages
from strop.data.images.store import ImageStore, UnstoredImages
from strop.data.offline_dataset import check_offline_images
from strop.data.taskset import check_task_images
from strop.errors import ConfigError, DataError, MissingExtraError, ModelError
from strop.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_prompt_images(run: Run, tokenizer: PreTrainedTokenizerBase) -> RunImages | None:
    """Images of the run's prompts; None for a model that reads text only.

    Raises `ModelError` for a model that reads images and has no image processor, and `ConfigError` for an engine that
    does not take the images of its model.
    """
    from strop.models.loading import load_config

    if load_config(run.model).model_type not in IMAGE_FAMILIES:
        return None
    if _needs_images(run) and (fault := image_engine_fault(run)):
        raise ConfigError(fault)
    return _with_processor(run.model, run.data.images, tokenizer, ImageStore(RunFolder.of(run).images))


def _needs_images(run: Run) -> bool:
    """Whether each row of a taskset that is sampled from has images or an empty list of them."""
    sections = (*run.data.training_tasksets().values(), *run.data.eval)
    return any(each.images and each.images not in each.optional_columns for each in sections)


def load_generation_images(section: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> RunImages | None:
    """Images of a generation's prompts, stored in a folder `images` next to its output; None for a model of text.

    Raises `ConfigError` for images next to an output that is not on this machine.
    """
    from strop.models.loading import load_config

    if section.data.train.images is None or load_config(section.model).model_type not in IMAGE_FAMILIES:
        return None
    if "://" in section.output:
        raise ConfigError(
            f"The images of the prompts are stored next to the output, and {section.output} is not on this machine. "
            "Write a path as the output."
        )
    store = ImageStore(Path(section.output).parent / "images")
    return _with_processor(section.model, section.data.images, tokenizer, store)


def image_faults(run: Run) -> Iterator[str]:
    """Yield an error for each taskset on this machine with images that the run cannot use; loads no weights.

    Tasksets and models elsewhere are not read, and neither are task queues and rows of a custom dataset class.
    """
    folder = existing_path(run.model.path)
    if folder is None:
        return
    try:
        images = _images_to_check(run, folder)
    except ModelError as error:
        yield str(error)
        return
    training = run.data.training_tasksets() if run.data.queue is None else {}
    tasksets: list[tuple[str, TasksetConfig]] = [
        (key.removeprefix("data."), each) for key, each in training.items()
    ]
    tasksets += [(each.name, each) for each in run.data.eval]
    tasksets += [(each.name, each) for each in run.data.demonstrations]
    for name, section in tasksets:
        paths = (section.path,) if isinstance(section.path, str) else section.path
        if section.dataset is not None or not all(map(existing_path, paths)):
            continue
        if section.text is not None:
            continue
        check = check_offline_images if section.is_offline else check_task_images
        try:
            check(section, run.data, images, name)
        except (DataError, MissingExtraError) as error:
            yield str(error)
    store = images.store if images else None
    if isinstance(store, UnstoredImages) and store.has_images and (fault := image_engine_fault(run)):
        yield fault


def _images_to_check(run: Run, folder: Path) -> RunImages | None:
    if not folder_takes_images(run.model.path):
        return None
    from strop.run.tokenizer import load_run_tokenizer

    return _with_processor(run.model, run.data.images, load_run_tokenizer(run), UnstoredImages(folder))


def _with_processor(
    model: ModelConfig, limits: ImagesConfig, tokenizer: PreTrainedTokenizerBase, store: ImageStore
) -> RunImages:
    from strop.models.vision.image_processor import load_image_processor

    processor = load_image_processor(
        model.path,
        tokenizer,
        min_pixels=limits.min_pixels,
        max_pixels=limits.max_pixels,
        trust_remote_code=model.trust_remote_code,
    )
    return RunImages(store, processor, limits)
