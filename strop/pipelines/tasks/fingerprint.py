"""Fingerprint of a pipeline's result: input, operators, code, and the models that operators ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from strop import __version__
from strop.config.paths import existing_path
from strop.config.schema.base import Section
from strop.config.schema.data import DataConfig
from strop.config.schema.language_model import EndpointModelConfig, EngineModelConfig
from strop.config.schema.task_filters import PassRateConfig
from strop.config.schema.task_operators import (
    CustomTaskOperatorConfig,
    DataJuicerTasksConfig,
    MixtureConfig,
    TemplateConfig,
)
from strop.config.user_code import user_code_digest
from strop.data.sources.rows import DatasetRows
from strop.pipelines.tasks.language_model import endpoint_url
from strop.pipelines.tasks.protocol import PipelineServices
from strop.pipelines.tasks.templates import template_text

_BLOCK = 2**20
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
        _code_digest(),
        {name: str(getattr(train, name)) for name in _INPUT_FIELDS},
        _content_digest(train.path, rows),
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
        found.append(user_code_digest(section.operator))
    if isinstance(section, DataJuicerTasksConfig) and section.config is not None:
        found.append(_files_digest(section.config))
    if isinstance(section, MixtureConfig):
        found += [_files_digest(each.path) for each in section.inputs]
    return found


def _content_digest(path: str | tuple[str, ...], rows: DatasetRows) -> str:
    """Hash of the files of a dataset; where there are none on this machine, of its rows."""
    paths = (path,) if isinstance(path, str) else path
    if all(existing_path(each) for each in paths):
        return _files_digest(path)
    digest = hashlib.sha256()
    for row in rows.scan(("",)):
        digest.update(json.dumps(row, sort_keys=True, default=_digestible).encode())
    return digest.hexdigest()


def _digestible(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _files_digest(path: str | tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for each in (path,) if isinstance(path, str) else path:
        digest.update(each.encode())
        found = existing_path(each)
        for file in [] if found is None else _files(found):
            assert found is not None
            digest.update(str(file.relative_to(found)).encode() + _file_digest(file).encode())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in sorted(path.rglob("*")) if file.is_file() and file.name[0] not in "._")


def _file_digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        return f"unreadable: {error.strerror}"  # the reader or the operator says what is wrong
    return digest.hexdigest()


def _text_digest(text: str) -> str:
    """Hash of a text, or of the file that it names."""
    file = existing_path(text) if "\n" not in text and len(text) < 1000 else None
    if file is not None and file.is_file():
        return _file_digest(file)
    return hashlib.sha256(template_text(text, "prompt").encode()).hexdigest()


def _code_digest() -> str:
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
