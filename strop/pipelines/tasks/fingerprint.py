"""Fingerprint of a pipeline's result: input, operators, code, and the models that operators ask."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path

from strop import __version__
from strop.config.paths import existing_path
from strop.config.schema.base import Section
from strop.config.schema.data import DataConfig
from strop.config.schema.task_pipeline import (
    CustomTaskOperatorConfig,
    DataJuicerTasksConfig,
    EndpointModelConfig,
    EngineModelConfig,
    MixtureConfig,
    PassRateConfig,
    TemplateConfig,
)
from strop.config.user_code import code_digest
from strop.data.sources.cache import content_digest, file_digest, files_digest
from strop.data.sources.rows import DatasetRows
from strop.pipelines.tasks.language_model import endpoint_url
from strop.pipelines.tasks.protocol import PipelineServices
from strop.pipelines.tasks.templates import template_text

_LIBRARIES = ("datasketch", "py3langid")
_INPUT_FIELDS = ("path", "table", "split", "subset", "limit_tasks", "generator", "images")
"""Fields of a taskset that decide which rows a pipeline reads."""


def pipeline_fingerprint(data: DataConfig, rows: DatasetRows, services: PipelineServices) -> str:
    """Hash of everything that the result depends on."""
    assert data.pipeline is not None
    digest = hashlib.sha256()
    train = data.train
    content = [
        __version__,
        _package_digest(),
        {name: str(getattr(train, name)) for name in _INPUT_FIELDS},
        content_digest(train.path, rows),
        data.pipeline.model_dump(mode="json", include={"operators", "columns"}),
        [_operator_identity(section, services) for section in data.pipeline.operators],
        {name: _version(name) for name in _LIBRARIES},
    ]
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def _operator_identity(section: Section, services: PipelineServices) -> list[str]:
    """Identities of what an operator's result depends on in addition to its section: files, models, reward."""
    found: list[str] = []
    model = getattr(section, "model", None)
    if isinstance(prompt := getattr(section, "prompt", None), str):
        found.append(_text_digest(prompt))
    if isinstance(section, TemplateConfig):
        found += map(_text_digest, section.columns.values())
    if isinstance(model, EngineModelConfig):
        found.append(services.model_fingerprint(model.path))
    if isinstance(model, EndpointModelConfig):
        found.append(endpoint_url(model) or "")
    if isinstance(section, PassRateConfig):
        found += [services.model_fingerprint(section.model), services.rollout_fingerprint()]
    if isinstance(section, CustomTaskOperatorConfig):
        found.append(code_digest(section.operator))
    if isinstance(section, DataJuicerTasksConfig) and section.config is not None:
        found.append(files_digest(section.config))
    if isinstance(section, MixtureConfig):
        found += [files_digest(each.path) for each in section.inputs]
    return found


def _text_digest(text: str) -> str:
    """Hash of a text, or of the file that it names."""
    file = existing_path(text) if "\n" not in text and len(text) < 1000 else None
    if file is not None and file.is_file():
        return file_digest(file)
    return hashlib.sha256(template_text(text, "prompt").encode()).hexdigest()


def _package_digest() -> str:
    """Hash of the source of this package."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
