"""Serving of a model, or of the model of a run, with adapters, on an OpenAI-compatible endpoint."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedTokenizerBase

from strop.config.model_files import IMAGE_FAMILIES
from strop.config.peft_adapter import adapter_folder
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import (
    AuxiliaryEngineConfig,
    AuxiliaryModelConfig,
    NativeEngineConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from strop.data.images.prompt_images import RunImages
from strop.data.images.store import ImageStore
from strop.errors import ConfigError
from strop.inference.auxiliary_model import AuxiliaryEngineFactory, engine_in_own_process
from strop.inference.endpoint.server import EndpointAccess, EndpointOptions, EndpointServer, FurtherRoutes
from strop.inference.native import NativeEngine
from strop.inference.served_model import ServedModel, ServedModelSettings
from strop.models.loading import load_config, load_model, load_tokenizer
from strop.models.lora import with_adapter
from strop.models.shared_weights import fuse_storage, model_weights
from strop.models.vision.model_images import ModelImages
from strop.protocols import SharedWeights
from strop.run.entry.chat import ChatSource
from strop.training.device import find_device
from strop.workers.start import LOCAL

_ENGINES: Mapping[str, Callable[[], AuxiliaryEngineConfig]] = {
    "native": NativeEngineConfig,
    "vllm": VllmEngineConfig,
    "sglang": SglangEngineConfig,
}
_MAX_RESTARTS = 3
"""Maximum restarts of an engine in a process of its own."""
_OPEN_FILES = 8192
"""Number of open files that the process asks for, one for each connection."""


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The served model on the native engine, for a protocol that also trains it."""

    model: ModelConfig
    weights: SharedWeights
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Models of a service, its address and its keys."""

    name: str
    """Name of the model in requests."""
    adapters: Mapping[str, str]
    """PEFT folder of each adapter, by the name of the adapted model in requests."""
    engine: str = "native"
    host: str = "127.0.0.1"
    port: int = 0
    """0 is any free port."""
    tokens: Sequence[str] = ()
    """API keys; a new one if there are none."""
    max_tokens: int | None = None
    """Maximum length of a chat's reply, for requests without their own limit; None for that of the source."""
    seed: int | None = None
    """See `ServedModelSettings`."""
    further: Callable[[ServedBase], AbstractContextManager[FurtherRoutes]] | None = None
    """Routes of another protocol, with the native engine."""


@contextmanager
def open_service(source: ChatSource, options: ServiceOptions) -> Iterator[EndpointAccess]:
    """Serve the source's model inside the block; returns the URL and one of the API keys.

    Raises `ConfigError` for adapters on an engine that does not take them, `ModelError` for a model or an adapter that
    cannot be used, and what `EndpointServer.register` raises.
    """
    if options.further is not None and options.engine != "native":
        raise ConfigError(
            f"--tinker works with --engine native: clients sample from several adapters at once, and {options.engine} "
            "has one in place. Leave out --engine; --ranks N trains on several GPUs"
        )
    _allow_open_files()
    with ExitStack() as opened:
        models, base = opened.enter_context(_open_models(source, options))
        further = None
        if options.further is not None:
            assert base is not None
            further = opened.enter_context(options.further(base))
        server = EndpointServer(
            EndpointOptions(
                options.host,
                options.port,
                port_option="--port",
                key_hint="or missing; it is the one that `strop serve` prints, or the value of --token",
                model_hint="`--name` and `--adapter NAME=PATH` of `strop serve` set the names",
                max_unauthenticated=_OPEN_FILES // 2,
            ),
            further,
        )
        opened.callback(server.close)
        accesses = [opened.enter_context(server.register(models, key)) for key in options.tokens or (None,)]
        yield accesses[0]


@contextmanager
def _open_models(
    source: ChatSource, options: ServiceOptions
) -> Iterator[tuple[dict[str, ServedModel], ServedBase | None]]:
    """The served models by name, and the model itself where the native engine serves it."""
    engine = _ENGINES[options.engine]()
    with ExitStack() as opened:
        settings = ServedModelSettings(
            options.name,
            source.model,
            engine,
            options.max_tokens or source.max_tokens,
            source.chat_template,
            source.template_args,
            source.parser,
            _images(source, Path(opened.enter_context(TemporaryDirectory(prefix="strop-serve-")))),
            options.seed,
        )
        device = find_device("auto")
        models: dict[str, ServedModel] = {}
        base: ServedBase | None = None

        def add(name: str, create: Callable[[], NativeEngine]) -> None:
            models[name] = ServedModel(replace(settings, name=name), create)
            opened.callback(models[name].close)

        if isinstance(engine, NativeEngineConfig):
            weights = _load_weights(source, device)
            tokenizer = load_tokenizer(source.model)
            base = ServedBase(source.model, weights, tokenizer)
            add(options.name, lambda: NativeEngine.from_weights(weights, engine, tokenizer))
            for name, path in options.adapters.items():
                if name in models:
                    raise ConfigError(f"--adapter {name}: a model of this name is served; write another name")
                adapted = with_adapter(weights, adapter_folder(path), f"--adapter {name}")
                add(name, partial(NativeEngine.from_weights, adapted, engine, tokenizer))
        else:
            if options.adapters:
                raise ConfigError(
                    f"--adapter works with --engine native; {options.engine} serves one model. Merge the adapter into "
                    "the model (merge_and_unload and save_pretrained of PEFT), and serve that folder"
                )
            section = AuxiliaryModelConfig(name="served", path=source.model.path, engine=engine)
            create = AuxiliaryEngineFactory(section, device)
            models[options.name] = ServedModel(
                settings, lambda: engine_in_own_process(create, LOCAL, _MAX_RESTARTS)
            )
            opened.callback(models[options.name].close)
        yield models, base


def _load_weights(source: ChatSource, device: torch.device) -> SharedWeights:
    loaded = load_model(source.model, device=device, trainable=False)
    fuse_storage(loaded)
    images = ModelImages(source.model, source.images)
    return model_weights(loaded, image_processor=lambda: images.processor)


def _images(source: ChatSource, folder: Path) -> RunImages | None:
    if load_config(source.model).model_type not in IMAGE_FAMILIES:
        return None
    return RunImages(ImageStore(folder), ModelImages(source.model, source.images).processor, source.images)


def _allow_open_files() -> None:
    """Raise the limit of open files, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
