"""Routes of Tinker's protocol on the endpoint of `strop serve --tinker`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from tinker.types import (
    AdamOptimizerConfig,
    ClientConfigResponse,
    ClientDynamicConfigResponse,
    CreateModelRequest,
    CreateSamplingSessionRequest,
    CreateSessionRequest,
    CreateSessionResponse,
    FutureRetrieveRequest,
    GetInfoRequest,
    JoinSamplingSessionRequest,
    LoadWeightsRequest,
    LoraConfig,
    OptimStepRequest,
    SampleRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
    SessionHeartbeatRequest,
    UnloadModelRequest,
)

from strop.compat.tinker.catalog import DOWNLOAD_PATH, Catalog
from strop.compat.tinker.sampling import AdapterSamplers
from strop.compat.tinker.store import ClientSession, SamplingSession, ServiceFiles, TrainingRunInfo
from strop.compat.tinker.training_runs import Result, Trainer
from strop.compat.tinker.wire import PROTOBUF, read_json, read_loss_request, read_request, sample_response
from strop.errors import DataError
from strop.inference.endpoint.request import BadRequest
from strop.inference.endpoint.server import read_body

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger("strop.tinker")
_POLL_SECONDS = 20.0
"""Time after which a client has to ask again for a result; its own limit is 45 s."""
_KEPT_RESULTS = 4096
"""Number of results of samples that are kept until the client reads them."""
_MAX_RANK = 1024
"""Maximum rank of an adapter."""
_NOT_HERE = (
    "this server has one owner, so that there are no accounts, projects, billing, audit or sharing, and no traces; "
    "custom losses run in the client"
)


class TinkerRoutes:
    """Handlers of the protocol, for one base model. They run in the endpoint's event loop."""

    def __init__(
        self,
        name: str,
        tokenizer_id: str | None,
        context_tokens: int,
        files: ServiceFiles,
        samplers: AdapterSamplers,
        trainer: Trainer,
    ) -> None:
        """`name` is the base model's in requests; `tokenizer_id` is what clients load its tokenizer from, if it is not
        the name."""
        self._name, self._tokenizer_id, self._context_tokens = name, tokenizer_id, context_tokens
        self._files, self._samplers, self._trainer = files, samplers, trainer
        self._samples: dict[str, asyncio.Task[Result]] = {}
        """Tasks of sampling requests, by the request's id."""
        self._catalog = Catalog(files, trainer)
        self._joined: dict[str, int] = {}
        """Number of further clients of each sampling session."""

    def routes(self) -> Mapping[tuple[str, str], Callable[[web.Request, bytes], Awaitable[Result]]]:
        """Handlers by method and path."""
        return {
            **self._catalog.routes(),
            ("GET", "/api/v1/healthz"): self._health,
            ("GET", "/api/v1/get_server_capabilities"): self._capabilities,
            ("POST", "/api/v1/client/config"): self._config,
            ("POST", "/api/v1/client/dynamic_config"): self._dynamic_config,
            ("POST", "/api/v1/telemetry"): self._telemetry,
            ("POST", "/api/v1/create_session"): self._create_session,
            ("POST", "/api/v1/session_heartbeat"): self._heartbeat,
            ("POST", "/api/v1/create_model"): self._create_model,
            ("POST", "/api/v1/unload_model"): self._unload_model,
            ("POST", "/api/v1/get_info"): self._get_info,
            ("POST", "/api/v1/forward_backward"): self._loss,
            ("POST", "/api/v1/optim_step"): self._training(OptimStepRequest, "optim_step"),
            ("POST", "/api/v1/save_weights"): self._training(SaveWeightsRequest, "save_weights"),
            ("POST", "/api/v1/save_weights_for_sampler"): self._training(
                SaveWeightsForSamplerRequest, "save_weights_for_sampler"
            ),
            ("POST", "/api/v1/save_weights_external"): self._training(
                SaveWeightsExternalRequest, "save_weights_external"
            ),
            ("POST", "/api/v1/load_weights"): self._load_weights,
            ("POST", "/api/v1/create_sampling_session"): self._create_sampler,
            ("POST", "/api/v1/join_sampling_session"): self._join_sampler,
            ("POST", "/api/v1/asample"): self._sample,
            ("POST", "/api/v1/retrieve_future"): self._retrieve,
            ("POST", "/api/v1/cancel_future"): self._cancel,
        }

    def add_to(
        self,
        app: web.Application,
        authenticate: Callable[[web.Request], object],
        admit: Callable[[web.Request], object],
    ) -> None:
        from aiohttp import web

        def handler(compute: Callable[[web.Request, bytes], Awaitable[Result]]) -> Any:
            async def handle(request: web.Request) -> web.Response:
                authenticate(request)
                try:
                    result = await compute(request, await read_body(request))
                except TryAgain as again:
                    return web.json_response(again.body, status=408)
                except DataError as error:
                    raise BadRequest(str(error), status=422) from error
                except OSError as error:  # the SDK sends it again
                    raise BadRequest(f"the service cannot keep the request: {error}", status=503) from error
                content_type = PROTOBUF if result.kind == "protobuf" else "application/json"
                return web.Response(body=result.body, content_type=content_type)

            return handle

        for (method, path), compute in self.routes().items():
            app.router.add_route(method, path, handler(compute))

        async def download(request: web.Request) -> web.StreamResponse:
            response = self._catalog.file(request)
            admit(request)
            return response

        app.router.add_get(DOWNLOAD_PATH, download)

        async def absent(request: web.Request) -> web.Response:
            authenticate(request)
            raise BadRequest(f"{request.method} {request.path[:80]} is not served: {_NOT_HERE}", status=404)

        app.router.add_route("*", "/api/v1/{rest:.*}", absent)

    async def _health(self, request: web.Request, body: bytes) -> Result:
        return Result.json({"status": "ok"})

    async def _capabilities(self, request: web.Request, body: bytes) -> Result:
        model = {
            "model_name": self._name,
            "max_context_length": self._context_tokens,
            "trainable": True,
            "sampleable": True,
        }
        return Result.json({"supported_models": [model]})

    async def _config(self, request: web.Request, body: bytes) -> Result:
        return _model_result(ClientConfigResponse(sample_join_sampling_session=True))

    async def _dynamic_config(self, request: web.Request, body: bytes) -> Result:
        return _model_result(ClientDynamicConfigResponse(sample_cancel_enabled=True))

    async def _telemetry(self, request: web.Request, body: bytes) -> Result:
        return Result.json({"status": "accepted"})  # and dropped

    async def _create_session(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(CreateSessionRequest, read_json(body))
        session = ClientSession(
            session_id=uuid.uuid4().hex,
            user_metadata=asked.user_metadata,
            display_name=asked.display_name,
            created=datetime.now(UTC),
        )
        self._files.write("sessions", session.session_id, session)
        self._trainer.heard_from(session.session_id)
        warning = _version_warning(asked.sdk_version)
        return _model_result(CreateSessionResponse(session_id=session.session_id, warning_message=warning))

    async def _heartbeat(self, request: web.Request, body: bytes) -> Result:
        session = self._files.require_session(
            read_request(SessionHeartbeatRequest, read_json(body)).session_id
        )
        self._trainer.heard_from(session.session_id)
        return Result.json({"type": "session_heartbeat"})

    async def _create_model(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(CreateModelRequest, read_json(body))
        self._files.require_session(asked.session_id)
        self._require_base(asked.base_model)
        _require_adam(asked.optimizer_config)
        if asked.lora_config is None:
            raise DataError("lora_config is missing; this server trains adapters")
        return self._start_run(
            asked.session_id,
            asked.model_seq_id,
            asked.lora_config,
            asked.user_metadata,
            None,
            optimizer=False,
        )

    async def _load_weights(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(LoadWeightsRequest, read_json(body))
        if asked.model_id is not None:
            return self._submitted(asked.model_id, asked.seq_id or 0, "load_weights", body)
        if asked.session_id is None or asked.model_seq_id is None:
            raise DataError("load_weights needs a model_id, or a session_id with a model_seq_id")
        self._files.require_session(asked.session_id)
        _require_adam(asked.optimizer_config)
        _, info = self._files.find_checkpoint(asked.path, "weights")
        self._require_base(asked.base_model or info.base_model)
        return self._start_run(
            asked.session_id,
            asked.model_seq_id,
            info.lora,
            asked.user_metadata,
            asked.path,
            optimizer=asked.optimizer,
        )

    def _start_run(
        self,
        session_id: str,
        number: int,
        lora: LoraConfig,
        user_metadata: dict[str, Any] | None,
        path: str | None,
        *,
        optimizer: bool,
    ) -> Result:
        if not 1 <= lora.rank <= _MAX_RANK:
            raise DataError(f"lora_config.rank is {lora.rank}; write 1 to {_MAX_RANK}")
        seed = secrets.randbits(31) if lora.seed is None else lora.seed
        if seed < 0:
            raise DataError(f"lora_config.seed is {seed}; write 0 or more")
        info = TrainingRunInfo(
            model_id=f"{session_id}:train:{number}",
            session_id=session_id,
            base_model=self._name,
            lora=lora.model_copy(update={"seed": seed}),
            user_metadata=user_metadata,
            created=datetime.now(UTC),
            starts_from=path,
            starts_with_optimizer=optimizer,
        )
        return _promise(self._trainer.start_run(info), info.model_id)

    async def _unload_model(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(UnloadModelRequest, read_json(body))
        self._trainer.info(asked.model_id)
        self._trainer.forget(asked.model_id)  # of its memory; its files stay
        return Result.json({"model_id": asked.model_id, "type": "unload_model"})

    async def _get_info(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(GetInfoRequest, read_json(body))
        info = self._trainer.info(asked.model_id)
        model = {"arch": None, "model_name": self._name, "tokenizer_id": self._tokenizer_id}
        return Result.json(
            {
                "type": "get_info",
                "model_data": model,
                "model_id": info.model_id,
                "is_lora": True,
                "lora_rank": info.lora.rank,
                "model_name": self._name,
            }
        )

    async def _loss(self, request: web.Request, body: bytes) -> Result:
        asked = read_loss_request(body)
        kind = "forward" if asked.forward_only else "forward_backward"
        return self._submitted(asked.model_id, asked.seq_id, kind, body)

    def _training(
        self, kind: type[BaseModel], name: str
    ) -> Callable[[web.Request, bytes], Awaitable[Result]]:
        async def handle(request: web.Request, body: bytes) -> Result:
            asked: Any = read_request(kind, read_json(body))
            return self._submitted(asked.model_id, asked.seq_id or 0, name, body)

        return handle

    def _submitted(self, model_id: str, seq: int, kind: str, body: bytes) -> Result:
        return _promise(self._trainer.submit(model_id, seq, kind, body), model_id)

    async def _create_sampler(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(CreateSamplingSessionRequest, read_json(body))
        self._files.require_session(asked.session_id)
        base_model = asked.base_model
        if asked.model_path is not None:
            _, info = self._files.find_checkpoint(asked.model_path, "sampler_weights")
            base_model = base_model or info.base_model
        self._require_base(base_model)
        sampler = SamplingSession(
            sampler_id=f"{asked.session_id}:sample:{asked.sampling_session_seq_id}",
            base_model=self._name,
            model_path=asked.model_path,
        )
        self._files.write("samplers", sampler.sampler_id, sampler)
        return Result.json({"type": "create_sampling_session", "sampling_session_id": sampler.sampler_id})

    async def _join_sampler(self, request: web.Request, body: bytes) -> Result:
        sampler = self._files.require_sampler(
            read_request(JoinSamplingSessionRequest, read_json(body)).sampling_session_id
        )
        # A number that a client of before a restart has cannot come again: they start at a random one.
        count = self._joined.get(sampler.sampler_id, secrets.randbelow(500_000_000)) + 1
        self._joined[sampler.sampler_id] = count
        return Result.json({"type": "join_sampling_session", "client_counter": count})

    async def _sample(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(SampleRequest, read_json(body))
        if asked.sampling_session_id is None or asked.seq_id is None:
            raise DataError("asample needs sampling_session_id and seq_id")
        sampler = self._files.require_sampler(asked.sampling_session_id)
        request_id = f"{sampler.sampler_id}:{asked.seq_id}"
        if request_id not in self._samples:
            while len(self._samples) >= _KEPT_RESULTS:
                oldest = next((key for key, task in self._samples.items() if task.done()), None)
                if oldest is None:
                    raise BadRequest(f"{_KEPT_RESULTS} samples wait; ask again", status=429)
                del self._samples[oldest]
            self._samples[request_id] = asyncio.create_task(self._sampled(request_id, sampler, asked))
        names = [f"{request_id}:{number}" for number in range(asked.num_samples)]
        return Result.json({"request_id": request_id, "sample_sequence_ids": names})

    async def _sampled(self, request_id: str, sampler: SamplingSession, asked: SampleRequest) -> Result:
        try:
            path = sampler.model_path
            if sampler.inflight_of is not None and (run := self._files.run(sampler.inflight_of)) is not None:
                path = (run.folder / "inflight").read_text()
            folder = None if path is None else self._files.find_checkpoint(path)[0]
            requests = self._samplers.requests(asked, secrets.randbits(63))
            completions = await self._samplers.sample(folder, requests)
            if asked.record_stability_info:
                for number, each in enumerate(completions):
                    self._files.record_sequence(
                        f"{request_id}:{number}", each.token_ids, each.sampler_logprobs
                    )
            return Result("protobuf", sample_response(asked, completions))
        except Exception as error:  # noqa: BLE001  (the client gets it, and the log)
            return Result.of_error(error)

    async def _retrieve(self, request: web.Request, body: bytes) -> Result:
        request_id = read_request(FutureRetrieveRequest, read_json(body)).request_id
        result = None
        if (task := self._samples.get(request_id)) is not None:
            done, _ = await asyncio.wait([task], timeout=_POLL_SECONDS)
            if done:
                result = (
                    Result.error("the request was cancelled", "user") if task.cancelled() else task.result()
                )
        else:
            try:
                result = await self._trainer.result(request_id, _POLL_SECONDS)
            except KeyError:
                raise BadRequest(
                    f"the request {request_id!r} is unknown, or its result was lost with a server that ended; send it "
                    "again",
                    status=410,
                ) from None
        if result is None:
            raise TryAgain(request_id)
        return result

    async def _cancel(self, request: web.Request, body: bytes) -> Result:
        task = self._samples.get(read_request(FutureRetrieveRequest, read_json(body)).request_id)
        if task is not None:
            task.cancel()
        return Result.json({})

    def _require_base(self, name: str | None) -> None:
        if name != self._name:
            raise DataError(f"this server has the model {self._name!r}, not {name!r}")


class TryAgain(Exception):
    """A result is not there yet: the client asks again at once."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.body = {"type": "try_again", "request_id": request_id, "queue_state": "active"}


def _promise(request_id: str, model_id: str) -> Result:
    return Result.json({"request_id": request_id, "model_id": model_id})


def _model_result(model: BaseModel) -> Result:
    return Result("json", model.model_dump_json().encode())


def _version_warning(theirs: str) -> str | None:
    """Message to a client of another minor version of the SDK; None for the same."""
    own = version("tinker")
    if theirs.split(".")[:2] == own.split(".")[:2]:
        return None
    return (
        f"This service speaks the protocol of tinker {own}, and the client is tinker {theirs[:40]}; requests with "
        f"fields that differ are refused by name. pip install tinker=={own} has all of them."
    )


def _require_adam(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, AdamOptimizerConfig):
        raise DataError(f"the optimizer {getattr(optimizer, 'type', optimizer)!r} is not served; AdamW is")
