"""Training runs of a Tinker service: requests of each client in their order, in one thread, with an exact resume.

A request is written before it is acknowledged. From time to time the state of adapter and optimizer is written, and the
requests before it are dropped; after a kill, the requests since the last state are computed again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from tinker.types import (
    AdamOptimizerConfig,
    AdamParams,
    LoadWeightsRequest,
    OptimStepRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)

from strop.compat.tinker.run_record import RunRecord
from strop.compat.tinker.store import (
    EPHEMERAL,
    CheckpointInfo,
    CheckpointPath,
    RunFiles,
    SamplingSession,
    ServiceFiles,
    TrainingRunInfo,
    check_name,
    encryption,
)
from strop.compat.tinker.training import TrainedAdapter
from strop.compat.tinker.wire import LossDatum, loss_response, read_loss_request, read_request
from strop.errors import DataError, StropError
from strop.runs.sessions import SessionOutcome
from strop.workers.files import atomic_path

log = logging.getLogger("strop.tinker")
_KEPT_RESULTS = 1024
"""Number of results that are kept in memory."""
_SILENT_SECONDS = 600.0
"""Time without a heartbeat after which a session's runs are no longer kept in memory."""
_STATE_SHARE = 0.1
"""Maximum share of a run's time that goes into the writing of states; the more time, the less to compute again."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a request, as it is sent and kept."""

    kind: str
    """`json`, `protobuf` or `error`."""
    body: bytes

    @classmethod
    def json(cls, value: Mapping[str, Any]) -> Result:
        return cls("json", json.dumps(value).encode())

    @classmethod
    def error(cls, message: str, category: str) -> Result:
        """`category` is `user` for a fault of the request, otherwise `server`."""
        return cls("error", json.dumps({"error": message, "category": category}).encode())

    @classmethod
    def of_error(cls, error: Exception) -> Result:
        """The answer to a request that raised."""
        if isinstance(error, DataError):
            return cls.error(str(error), "user")
        if isinstance(error, StropError | OSError):
            return cls.error(str(error), "server")
        log.error("A request failed.", exc_info=error)
        return cls.error("internal error; the server's log has it", "server")


class TrainingRun:
    """One training run. `submit` belongs to the event loop, all else to the thread of the trainer."""

    def __init__(
        self, files: RunFiles, service: ServiceFiles, create: Callable[[TrainingRunInfo], TrainedAdapter]
    ) -> None:
        self.files = files
        self.info = files.info()
        self._service = service
        self._create = create
        self._adapter: TrainedAdapter | None = None
        state = files.state()
        self._computed = 0 if state is None else state[0]
        """Number of the last request that was computed."""
        self._record: RunRecord | None = None
        self._busy_seconds = self._state_seconds = 0.0
        """Time of requests since the last state, and of writing that."""
        self.next_seq = self._computed + 1
        """Number of the request that comes next."""
        self.waiting: dict[int, tuple[str, bytes]] = {}
        """Requests that came before their turn."""
        for seq, kind, body in files.requests(self._computed):
            if seq == self.next_seq:
                self.next_seq += 1
            else:
                self.waiting[seq] = (kind, body)

    def open(self, before: int | None = None) -> None:
        """Build the adapter, and compute the requests since the last state again, up to one or to the last."""
        if self._adapter is not None and self._adapter.engine.is_lost:
            self.close("failed")
        if self._adapter is None:
            self._adapter = self._built()
        for seq, kind, body in self.files.requests(self._computed):
            if seq != self._computed + 1 or seq == before:
                break
            changes = kind in ("forward_backward", "optim_step", "load_weights")
            if changes or self.result(seq) is None:
                self._compute(seq, kind, body)
            else:
                self._computed = seq

    def _built(self) -> TrainedAdapter:
        """The adapter in its last state."""
        adapter = self._create(self.info)
        state = self.files.state()
        if state is not None:
            adapter.load_state(state[1])
        elif self.info.starts_from is not None:
            folder, _ = self._service.find_checkpoint(self.info.starts_from)
            adapter.load_state(folder)
            if not self.info.starts_with_optimizer:
                adapter.reset_optimizer()
        if self._record is None:  # it is there where the state could not be written
            self._record = RunRecord(self.files.folder, self.info, adapter.run, state and state[1])
        if state is None and self.info.starts_from is not None:
            self._write(adapter, 0)  # the checkpoint may be deleted
        return adapter

    def result(self, seq: int) -> Result | None:
        """The kept result of a request."""
        with suppress(FileNotFoundError):
            kind, _, body = (self.files.journal / f"{seq}.result").read_bytes().partition(b"\n")
            return Result(kind.decode(), body)
        return None

    def execute(self, seq: int, kind: str, body: bytes) -> Result:
        """The result of the next request, after those before it."""
        try:
            return self._execute(seq, kind, body)
        except Exception as error:  # noqa: BLE001  (the client gets it, and the log)
            if self._adapter is None or not self._adapter.engine.is_lost:
                return Result.of_error(error)
            log.warning("%s: the run resumes from its last state after: %s", self.files.folder, error)
        try:
            return self._execute(seq, kind, body)
        except Exception as error:  # noqa: BLE001  (the client gets it, and the log)
            return Result.of_error(error)

    def _execute(self, seq: int, kind: str, body: bytes) -> Result:
        self.open(before=seq)
        kept = self.result(seq) if seq <= self._computed else None
        return kept or self._compute(seq, kind, body)

    def _compute(self, seq: int, kind: str, body: bytes) -> Result:
        """Compute a request, keep its result, and write a state if it is time. Raises what ended the ranks."""
        started = time.monotonic()
        try:
            result = _OPERATIONS[kind](self, seq, body)
        except Exception as error:
            if self._opened.engine.is_lost:
                raise
            result = Result.of_error(error)
        self._computed = seq
        try:
            with atomic_path(self.files.journal / f"{seq}.result") as file:
                file.write_bytes(result.kind.encode() + b"\n" + result.body)
            self._write_state(seq, kind, started)
        except OSError as error:  # the request stays in the journal
            log.error("%s: the result or the state of a run cannot be kept: %s", self.files.folder, error)
        return result

    def _write_state(self, seq: int, kind: str, started: float) -> None:
        """Write a state after a request that changes the weights, if it is time."""
        self._busy_seconds += time.monotonic() - started
        if kind not in ("optim_step", "load_weights") or self._opened.has_gradient:
            return
        if self._state_seconds <= _STATE_SHARE * self._busy_seconds:
            started = time.monotonic()
            self._write(self._opened, seq)
            self._busy_seconds, self._state_seconds = 0.0, time.monotonic() - started

    def _write(self, adapter: TrainedAdapter, seq: int) -> None:
        folder = self.files.begin_state()
        adapter.write_state(folder)
        self._recorded.write_progress(folder)
        self.files.finish_state(seq)

    def close(self, outcome: SessionOutcome) -> None:
        """Free the memory; the next request opens the run again."""
        if self._adapter is not None:
            self._adapter.engine.close()
            self._adapter = None
        state = self.files.state()
        self._computed = 0 if state is None else state[0]
        if self._record is not None:
            self._record.close(outcome)
            self._record = None

    def _loss(self, seq: int, body: bytes) -> Result:
        request = read_loss_request(body)
        if request.loss == "stable_reinforce":
            request = replace(request, data=tuple(map(self._with_recorded, request.data)))
        logprobs, metrics = self._opened.compute(request)
        if not request.forward_only:
            self._recorded.add_loss(metrics["loss:sum"])
        return Result("protobuf", loss_response(logprobs, metrics))

    def _optim_step(self, seq: int, body: bytes) -> Result:
        params = read_request(OptimStepRequest, json.loads(body)).optim_params
        if not isinstance(params, AdamParams):
            raise DataError(f"the optimizer {params.type!r} is not served; send AdamParams")
        metrics = self._opened.step(params)
        self._recorded.add_step(params.learning_rate, metrics["unclipped_grad_l2:mean"])
        return Result.json({"metrics": metrics, "type": "optim_step"})

    def _save(self, seq: int, body: bytes) -> Result:
        request = read_request(SaveWeightsRequest, json.loads(body))
        if self._opened.has_gradient:
            raise DataError("save_state between forward_backward and optim_step would lose the gradient")
        path = CheckpointPath(self.info.model_id, "weights", check_name(request.path or f"{seq:06d}"))
        self._opened.write_state(self.files.begin_checkpoint(path, overwrite=request.overwrite))
        info = self._checkpoint_info(request.ttl_seconds, request.user_metadata)
        self.files.finish_checkpoint(path, info)
        return Result.json({"path": str(path), "type": "save_weights"})

    def _save_for_sampler(self, seq: int, body: bytes) -> Result:
        request = read_request(SaveWeightsForSamplerRequest, json.loads(body))
        name = f"{EPHEMERAL}{seq}" if request.path is None else check_name(request.path)
        path = CheckpointPath(self.info.model_id, "sampler_weights", name)
        self._opened.write_adapter(self.files.begin_checkpoint(path, overwrite=request.path is None))
        info = self._checkpoint_info(request.ttl_seconds, request.user_metadata)
        self.files.finish_checkpoint(path, info)
        if request.kind == "inflight":
            with atomic_path(self.files.folder / "inflight") as file:
                file.write_text(str(path))
        if request.sampling_session_seq_id is None:
            return Result.json({"path": str(path), "type": "save_weights_for_sampler"})
        sampler = SamplingSession(
            sampler_id=f"{self.info.session_id}:sample:{request.sampling_session_seq_id}",
            base_model=self.info.base_model,
            model_path=str(path),
            inflight_of=self.info.model_id if request.kind == "inflight" else None,
        )
        self._service.write("samplers", sampler.sampler_id, sampler)
        named = {} if request.path is None else {"path": str(path)}
        return Result.json(
            {**named, "sampling_session_id": sampler.sampler_id, "type": "save_weights_for_sampler"}
        )

    def _save_external(self, seq: int, body: bytes) -> Result:
        request = read_request(SaveWeightsExternalRequest, json.loads(body))
        path = CheckpointPath(self.info.model_id, "external_weights", check_name(request.path))
        encrypt = encryption(request.age_encryption_recipients or ())
        folder = self.files.begin_checkpoint(path, overwrite=False)
        self._opened.write_adapter(folder)
        size = 0
        for file in [*folder.iterdir()]:
            size += encrypt(file).stat().st_size
        self.files.finish_checkpoint(path, self._checkpoint_info(request.ttl_seconds, None))
        return Result.json({"path": str(path), "size_bytes": size, "type": "save_weights_external"})

    def _load(self, seq: int, body: bytes) -> Result:
        request = read_request(LoadWeightsRequest, json.loads(body))
        folder, info = self._service.find_checkpoint(request.path, "weights")
        check_compatible(info, self.info, request)
        self._opened.load_state(folder)
        if not request.optimizer:
            self._opened.reset_optimizer()
        return Result.json({"path": request.path, "model_id": self.info.model_id, "type": "load_weights"})

    @property
    def _opened(self) -> TrainedAdapter:
        assert self._adapter is not None
        return self._adapter

    @property
    def _recorded(self) -> RunRecord:
        assert self._record is not None
        return self._record

    def _checkpoint_info(self, ttl: int | None, user_metadata: dict[str, str] | None) -> CheckpointInfo:
        now = datetime.now(UTC)
        return CheckpointInfo(
            time=now,
            lora=self.info.lora,
            base_model=self.info.base_model,
            user_metadata=user_metadata,
            expires_at=None if ttl is None else now + timedelta(seconds=ttl),
        )

    def _with_recorded(self, datum: LossDatum) -> LossDatum:
        """The datum with the log-probs of its recorded sequences. Raises DataError for spans that do not fit them."""
        weights, targets = datum.inputs.get("advantages"), datum.inputs.get("target_tokens")
        if weights is None or targets is None:
            raise DataError("stable_reinforce needs loss_fn_inputs['target_tokens'] and ['advantages']")
        logprobs, known = np.zeros(len(targets), np.float32), np.zeros(len(targets), np.bool_)
        for span in datum.spans:
            if not span.sequence_id.startswith(f"{self.info.session_id}:"):
                raise DataError(f"the sequence {span.sequence_id!r} was sampled in another session")
            recorded = self._service.sequence(span.sequence_id)
            if recorded is None:
                raise DataError(
                    f"the sequence {span.sequence_id!r} is not recorded; sample with record_stability_info=True, and "
                    "train on it within a day"
                )
            token_ids, sampled = recorded
            own, theirs = (
                slice(span.first, span.first + span.length),
                slice(span.offset, span.offset + span.length),
            )
            if not np.array_equal(targets[own], token_ids[theirs]):
                raise DataError(
                    f"the targets of a span are not the tokens of the sequence {span.sequence_id!r}"
                )
            logprobs[own], known[own] = sampled[theirs], True
        if (weights[~known] != 0).any():
            raise DataError(
                "stable_reinforce: a token with an advantage is in no span of a sampled sequence; see "
                "Datum.with_provenance"
            )
        return replace(datum, inputs={**datum.inputs, "logprobs": logprobs})


_OPERATIONS: Mapping[str, Callable[[TrainingRun, int, bytes], Result]] = {
    "forward_backward": TrainingRun._loss,
    "forward": TrainingRun._loss,
    "optim_step": TrainingRun._optim_step,
    "save_weights": TrainingRun._save,
    "save_weights_for_sampler": TrainingRun._save_for_sampler,
    "save_weights_external": TrainingRun._save_external,
    "load_weights": TrainingRun._load,
}
"""Requests of a training client by name."""


def check_compatible(info: CheckpointInfo, run: TrainingRunInfo, request: LoadWeightsRequest) -> None:
    """Raises DataError for a checkpoint that the run cannot load."""
    if info.base_model != run.base_model:
        raise DataError(f"{request.path} is of {info.base_model}, and this run trains {run.base_model}")
    given = request.optimizer_config
    if given is not None and not isinstance(given, AdamOptimizerConfig):
        raise DataError(f"the optimizer {given.type!r} is not served; AdamW is")


class Trainer:
    """Runs the requests of all training clients, one at a time, each client's in the order of their numbers."""

    def __init__(self, service: ServiceFiles, create: Callable[[TrainingRunInfo], TrainedAdapter]) -> None:
        self._service = service
        self._create = create
        self._runs: dict[str, TrainingRun] = {}
        self._results: dict[str, asyncio.Future[Result]] = {}
        self._heard: dict[str, float] = {}
        """Time of each session's last heartbeat."""
        self._thread = ThreadPoolExecutor(1, "tinker training")

    def start_run(self, info: TrainingRunInfo) -> str:
        """Create a training run and build its adapter; returns the id of the request."""
        request_id = f"{info.model_id}:0"
        if request_id not in self._results:
            if self._service.run(info.model_id) is None:
                self._service.create_run(info)
            run = self._run(info.model_id)
            self._results[request_id] = self._in_thread(lambda: self._opened(run))
        return request_id

    def submit(self, model_id: str, seq: int, kind: str, body: bytes) -> str:
        """Accept a request; returns its id. A number that came before is the same request again."""
        run, request_id = self._run(model_id), f"{model_id}:{seq}"
        if run.info.is_copy:
            raise DataError(
                f"the run {model_id!r} holds a copy of a checkpoint; train on from it with "
                "create_training_client_from_state"
            )
        if seq < 1:
            raise DataError(f"seq_id is {seq}; requests of a training client are numbered from 1")
        if request_id in self._results or seq in run.waiting or seq < run.next_seq:
            return request_id
        run.files.write_request(seq, kind, body)
        self._expect(request_id)
        run.waiting[seq] = (kind, body)
        while run.next_seq in run.waiting:
            number = run.next_seq
            due_kind, due_body = run.waiting.pop(number)
            run.next_seq += 1
            done = self._in_thread(
                lambda number=number, k=due_kind, b=due_body: run.execute(number, k, b)  # type: ignore[misc]
            )
            done.add_done_callback(self._deliver(f"{model_id}:{number}"))
        return request_id

    async def result(self, request_id: str, seconds: float) -> Result | None:
        """The result of a request; None if it has none within a time. Raises KeyError for an unknown request."""
        if request_id not in self._results:
            model_id, _, number = request_id.rpartition(":")
            if not number.isdigit() or self._service.run(model_id) is None:
                raise KeyError(request_id)
            run = self._run(model_id)
            if (kept := run.result(int(number))) is not None:
                return kept
            if int(number) and not (run.files.journal / f"{number}.request").exists():
                raise KeyError(request_id)
            # A request of before a restart: it is computed when the run is opened.
            self._results[request_id] = self._in_thread(lambda: self._reopened(run, int(number)))
        with suppress(TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._results[request_id]), seconds)
        return None

    def info(self, model_id: str) -> TrainingRunInfo:
        """Raises DataError for a run that does not exist."""
        return self._run(model_id).info

    def heard_from(self, session_id: str) -> None:
        """A session's client lives. Frees the memory of those that have been silent for long."""
        now = time.monotonic()
        self._heard[session_id] = now
        for other in [each for each, last in self._heard.items() if now - last > _SILENT_SECONDS]:
            self.forget_session(other)

    def hears(self, session_id: str) -> bool:
        """Whether a session's client is believed to live."""
        return time.monotonic() - self._heard.get(session_id, -math.inf) <= _SILENT_SECONDS

    def forget_session(self, session_id: str) -> None:
        """Free the memory of a session's runs; the next request opens a run again."""
        self._heard.pop(session_id, None)
        for model_id in [each for each, run in self._runs.items() if run.info.session_id == session_id]:
            self.forget(model_id)

    def forget(self, model_id: str) -> None:
        """Free the memory of a run, unless it has requests to compute."""
        prefix = f"{model_id}:"
        own = [each for each in self._results if each.startswith(prefix)]
        if model_id in self._runs and all(self._results[each].done() for each in own):
            run = self._runs.pop(model_id)
            self._thread.submit(run.close, "finished")
            for each in own:
                del self._results[each]

    def close(self) -> None:
        """Wait for the running request; others stay in their journals."""
        self._thread.shutdown(cancel_futures=True)
        for run in self._runs.values():
            run.close("interrupted")

    def _run(self, model_id: str) -> TrainingRun:
        if model_id not in self._runs:
            if (files := self._service.run(model_id)) is None:
                raise DataError(f"there is no training run {model_id!r}")
            self._runs[model_id] = TrainingRun(files, self._service, self._create)
            for seq in self._runs[model_id].waiting:
                self._expect(f"{model_id}:{seq}")
        return self._runs[model_id]

    def _expect(self, request_id: str) -> None:
        """Prepare for a result; old ones are in their files."""
        done = [each for each, result in self._results.items() if result.done()]
        for each in done[: max(0, len(self._results) - _KEPT_RESULTS)]:
            del self._results[each]
        self._results[request_id] = asyncio.get_running_loop().create_future()

    def _opened(self, run: TrainingRun) -> Result:
        try:
            run.open()
        except Exception as error:  # noqa: BLE001  (the client gets it, and the log)
            return Result.of_error(error)
        if run.info.starts_from is None:
            return Result.json({"model_id": run.info.model_id, "type": "create_model"})
        return Result.json({"path": run.info.starts_from, "type": "load_weights"})

    def _reopened(self, run: TrainingRun, number: int) -> Result:
        opened = self._opened(run)
        if number == 0 or opened.kind == "error":
            return opened
        return run.result(number) or Result.error("the result of before the restart is lost", "server")

    def _in_thread(self, compute: Callable[[], Result]) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._thread, compute)

    def _deliver(self, request_id: str) -> Callable[[asyncio.Future[Result]], None]:
        waiting = self._results[request_id]

        def deliver(done: asyncio.Future[Result]) -> None:
            if (
                not waiting.done() and not done.cancelled()
            ):  # at the end of the service requests stay in the journal
                waiting.set_result(done.result())

        return deliver
