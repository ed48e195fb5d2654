"""SGLang's `Engine` as the library of a serving engine."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import SglangEngineConfig
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.serving.backend import engine_dtype, request_images
from strop.inference.sglang.library import (
    FILE_LOADER,
    RECEIVER,
    RESERVED_TOKENS,
    SglangFeatures,
    SglangLibrary,
    adapter_arguments,
    add_engine_kwargs,
    engine_arguments,
    import_sglang,
)
from strop.inference.sglang.weight_loader import FAILED, RequestConverter
from strop.inference.weight_transfer import WeightOffer, gpu_uuid
from strop.models.loading import load_config
from strop.types import Completion, SampleRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ADAPTER = "policy"
_NO_STEPS, _GENERATED = (0.0,) * 6, 5
"""SGLang's sums over its decoding steps before the first step, and the index of the generated tokens among them."""
_KV_CACHE = "kv_cache"
"""SGLang's name of the part of its memory that is freed where only an adapter is loaded."""


class SglangBackend(SglangFeatures):
    """SGLang's front end, which runs in the event loop of a serving engine."""

    name = "SGLang"

    def __init__(
        self,
        section: SglangEngineConfig,
        model: ModelConfig,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
        limits: ImagesConfig,
    ) -> None:
        super().__init__()
        self._section = section
        self._model = model
        self._on_cpu = device.type == "cpu"
        images = request_images(load_config(model), model, limits)
        self._converter = RequestConverter(model, tokenizer, images)
        self.capabilities = replace(
            self.capabilities,
            weight_transports=self.capabilities.weight_transports | {"process_group"},
            determinism="batch_invariant" if section.deterministic else "none",
            adapters=model.lora is not None and not section.merge_lora and images is None,
            images=images is not None,
            memory_release=bool(section.enable_memory_saver),
            keeps_prefixes=not section.disable_radix_cache,
        )
        self._adapter: str | None = None
        """Name of the adapter that requests use; None before the first is loaded."""
        self._library: SglangLibrary
        self._engine: Any
        self._front: Any
        """The engine's `TokenizerManager`, which has its coroutines."""
        self._processes: list[BaseProcess] = []
        """SGLang's processes."""

    async def start(self) -> None:
        """Start SGLang's processes, which load the model."""
        section = self._section
        self._library = library = import_sglang(on_cpu=self._on_cpu, processes=section.devices)
        arguments = engine_arguments(section, self._model, self._converter.vocab_size, on_cpu=self._on_cpu)
        if self._model.lora is not None and self.capabilities.adapters:
            arguments |= adapter_arguments(
                section, self._model.lora, self._converter.config, on_cpu=self._on_cpu
            )
        arguments = add_engine_kwargs(arguments, section, library.argument_types)
        try:
            self._engine = library.engine(**arguments)
        except Exception as error:
            raise InferenceError(f"SGLang {library.version} does not start: {error}") from error
        self._front = self._engine.tokenizer_manager
        self._processes = multiprocessing.active_children()

    async def close(self) -> None:
        """End SGLang's processes."""
        self._engine.shutdown()

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        section = self._section
        sizes = f"tensor parallel {section.tensor_parallel}, pipeline parallel {section.pipeline_parallel}"
        dtype = engine_dtype(section, self._model)
        return f"SGLang {self._library.version}, {self._converter.config.model_type} in {dtype}, {sizes}"

    def check(self, request: SampleRequest) -> None:
        """Raise `InferenceError` for an invalid request, and for one that SGLang would change."""
        (scheduler, *_) = self._engine._scheduler_init_result.scheduler_infos
        positions = min(self._front.context_len, scheduler["max_total_num_tokens"])
        self._converter.check(request, positions - RESERVED_TOKENS)

    async def generate(self, request: SampleRequest) -> Completion:
        """The completion of a request, whose tokens SGLang labels with their versions."""
        arguments = self._library.generate(**self._converter.arguments(request), lora_path=self._adapter)
        outputs = self._front.generate_request(arguments, None)
        with self._statistics.running():
            (output,) = [output async for output in outputs]
        self._statistics.record(output["meta_info"], await self._front.get_loads())
        return self._converter.completion(request, output, _version_of)

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Load an adapter in place of the last one. Raises `InferenceError` while completions are running: SGLang would
        end them with the old adapter."""
        if self._statistics.is_running:
            raise InferenceError(
                "SGLang replaces a LoRA adapter only while no completion is running; write "
                "rollout.engine.merge_lora: true"
            )
        library, front = self._library, self._front
        if self._adapter is not None:
            unloaded = await front.unload_lora_adapter(library.unload_adapter(lora_name=self._adapter))
            _check((unloaded.success, unloaded.error_message))
            self._adapter = None
        adapter = library.load_adapter(lora_name=_ADAPTER, lora_path=str(folder))
        loaded = await front.load_lora_adapter(adapter)
        _check(
            (loaded.success, f"{loaded.error_message} (rollout.engine.merge_lora: true loads merged weights)")
        )
        self._adapter = _ADAPTER

    async def load_weights(self, path: Path) -> None:
        """Have each process load its shard of a safetensors file, or of a folder's files."""
        await self._update(FILE_LOADER, str(path))

    async def receivers(self) -> list[str | None]:
        """The GPU of each process, by rank."""
        numbers = range(self._section.devices)
        return [None if self._on_cpu else gpu_uuid(torch.device("cuda", number)) for number in numbers]

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Have each process receive the weights, and load its shard of them bucket by bucket."""
        values = {"rendezvous": asdict(offer.rendezvous), "buckets": offer.buckets, "host": host}
        return await self._update(RECEIVER, json.dumps(values))

    async def _update(self, loader: str, argument: str) -> list[str]:
        """Call a function of `weight_loader` in each process; the reasons of transfers that did not end.

        Raises `ModelError` for a load that failed.
        """
        library, front = self._library, self._front
        if self.capabilities.adapters:
            raise InferenceError(
                "the SGLang engine was started for a LoRA adapter, and cannot load full weights next to it; write "
                "rollout.engine.merge_lora: true"
            )
        _check(await front.begin_weight_update(library.begin_update()))
        with TemporaryDirectory(prefix="strop-") as reports:
            names = [(argument, torch.empty(0)), (reports, torch.empty(0))]
            tensors = [library.serialize(names)] * self._section.tensor_parallel
            update = library.update(serialized_named_tensors=tensors, load_format=loader)
            _check(await front.update_weights_from_tensor(update))
            texts = {report: report.read_text(encoding="utf-8") for report in sorted(Path(reports).iterdir())}
        for report, text in texts.items():
            if report.suffix == FAILED:
                raise ModelError(text)
        _check(await front.end_weight_update(library.end_update()))
        return list(texts.values())

    async def discard_cache(self) -> None:
        """Discard the KV cache, which running completions compute again."""
        flushed = await self._front.flush_cache()
        _check((flushed.success, flushed.message))

    async def set_version(self, version: int) -> None:
        """Label the weights, so that SGLang reports the label with each token that they sample."""
        update = self._library.set_version(new_version=str(version), abort_all_requests=False)
        await self._front.update_weight_version(update)

    async def abort(self) -> None:
        """Abort all requests."""
        self._front.abort_request(abort_all=True)

    async def hold(self) -> None:
        """Stop decoding after the current step; running completions keep their tokens."""
        await self._front.pause_generation(self._library.pause(mode="retract"))

    async def release(self) -> None:
        """Continue decoding."""
        await self._front.continue_generation(self._library.resume())

    async def sleep(self) -> None:
        """Free the KV cache, and the weights if the next load brings them; on the CPU this frees nothing."""
        await self._front.release_memory_occupation(self._library.release_memory(tags=self._freed))

    async def wake_up(self) -> None:
        """Allocate what `sleep` freed, without its contents; decoding is held."""
        await self._front.resume_memory_occupation(self._library.resume_memory(tags=self._freed))
        await self.hold()

    @property
    def _freed(self) -> list[str] | None:
        """SGLang's names of the parts of its memory that `sleep` frees; None for all."""
        return [_KV_CACHE] if self.keeps_weights else None

    @property
    def keeps_weights(self) -> bool:
        """Whether the next load brings an adapter only."""
        return self.capabilities.adapters

    @property
    def processed_tokens(self) -> int:
        """Tokens that SGLang's schedulers have counted, plus those in their KV caches: they do not count decoding
        steps of more than 2 s, with which the KV caches still grow."""
        loads = self._front.load_snapshot_reader.read_all()
        return sum(
            load.total_prefill_uncached_tokens
            + int((load.decode_moments or _NO_STEPS)[_GENERATED])
            + load.num_used_tokens
            for load in loads
        )

    def lost(self, error: Exception) -> EngineLostError | None:
        """The error of a lost engine, if one of SGLang's processes has ended.

        SGLang sends SIGQUIT to this process then, which a shell script's command in the background ignores.
        """
        ended = [process.name for process in self._processes if not process.is_alive()]
        if not ended:
            return None
        return EngineLostError(f"a process of SGLang has ended ({', '.join(ended)}): {error}")


def _version_of(label: str) -> int:
    """Version of a label of the weights; those that SGLang started with have no number."""
    return 0 if label == "default" else int(label)


def _check(result: tuple[bool, str]) -> None:
    """Raise `ModelError` for a call that SGLang answers with a failure."""
    success, message = result
    if not success:
        raise ModelError(message)
