"""Routes of a Tinker service's sessions, runs and checkpoints: listing, search, copies, downloads, deletion."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker.types import (
    ActiveSessionStatusQuery,
    Checkpoint,
    ClientFinishedSessionStatusQuery,
    ClientSessionFinished,
    CopyWeightsRequest,
    SessionActive,
    SessionSearchCursor,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionStatus,
    SessionStatusQuery,
    SessionSummary,
    TrainingRun,
    UserSearchOwner,
)

from strop.compat.tinker.store import CheckpointPath, ClientSession, ServiceFiles, TrainingRunInfo
from strop.compat.tinker.training_runs import Result, Trainer
from strop.compat.tinker.wire import read_json, read_request
from strop.errors import DataError
from strop.inference.endpoint.request import BadRequest

if TYPE_CHECKING:
    from aiohttp import web

DOWNLOAD_PATH = "/api/v1/files/{ticket}/{name}"
_DESCRIPTION = "checkpoint.json"
_TICKET_TIME = timedelta(hours=1)
_MIN_TTL_SECONDS = 3600
_OWNER = "you"


@dataclass(frozen=True, slots=True)
class _Ticket:
    """The right to download a folder's files without a key."""

    folder: Path
    expires: datetime


class Catalog:
    """Handlers, in the endpoint's event loop."""

    def __init__(self, files: ServiceFiles, trainer: Trainer) -> None:
        self._files, self._trainer = files, trainer
        self._tickets: dict[str, _Ticket] = {}

    def routes(self) -> Mapping[tuple[str, str], Callable[[web.Request, bytes], Awaitable[Result]]]:
        """Handlers by method and path."""
        run = "/api/v1/training_runs/{model_id}"
        checkpoint = run + "/checkpoints/{kind}/{name}"
        return {
            ("POST", "/api/v1/weights_info"): self._weights_info,
            ("POST", "/api/v1/copy_weights"): self._copy_weights,
            ("GET", "/api/v1/training_runs"): self._list_runs,
            ("GET", run): self._get_run,
            ("GET", run + "/checkpoints"): self._list_checkpoints,
            ("DELETE", checkpoint): self._delete_checkpoint,
            ("PUT", checkpoint + "/ttl"): self._set_ttl,
            ("GET", checkpoint + "/external_weights_urls"): self._urls,
            ("GET", "/api/v1/checkpoints"): self._all_checkpoints,
            ("GET", "/api/v1/sessions"): self._list_sessions,
            ("POST", "/api/v1/sessions/search"): self._search_sessions,
            ("GET", "/api/v1/sessions/{session_id}"): self._get_session,
            ("POST", "/api/v1/sessions/{session_id}/finish"): self._finish_session,
            ("GET", "/api/v1/samplers/{sampler_id}"): self._get_sampler,
        }

    def file(self, request: web.Request) -> web.StreamResponse:
        """The file of an address of `_urls`. Raises BadRequest for one that has expired."""
        from aiohttp import web

        ticket = self._tickets.get(request.match_info["ticket"])
        if ticket is None or ticket.expires < datetime.now(UTC):
            raise BadRequest("the address has expired; ask for the external weights' URLs again", status=403)
        file = ticket.folder / request.match_info["name"]
        if file.parent != ticket.folder or file.name == _DESCRIPTION or not file.is_file():
            raise BadRequest(f"there is no file {file.name[:80]!r}", status=404)
        return web.FileResponse(file)

    async def _urls(self, request: web.Request, body: bytes) -> Result:
        path = self._checkpoint_path(request)
        if path.kind != "external_weights":
            raise DataError(
                f"{path}: write a path of save_weights_external; other checkpoints cannot be downloaded"
            )
        folder, _ = self._files.find_checkpoint(str(path))
        now = datetime.now(UTC)
        self._tickets = {key: each for key, each in self._tickets.items() if each.expires >= now}
        key, ticket = secrets.token_urlsafe(24), _Ticket(folder, now + _TICKET_TIME)
        self._tickets[key] = ticket
        base = f"{request.scheme}://{request.host}"
        names = [file.name for file in sorted(folder.iterdir()) if file.name != _DESCRIPTION]
        urls = {name: base + DOWNLOAD_PATH.format(ticket=key, name=name) for name in names}
        return Result.json({"urls": urls, "expires": ticket.expires.isoformat()})

    async def _weights_info(self, request: web.Request, body: bytes) -> Result:
        path = read_json(body).get("tinker_path")
        _, info = self._files.find_checkpoint(str(path))
        lora = info.lora
        return Result.json(
            {
                "base_model": info.base_model,
                "is_lora": True,
                "lora_rank": lora.rank,
                "train_unembed": lora.train_unembed,
                "train_mlp": lora.train_mlp,
                "train_attn": lora.train_attn,
            }
        )

    async def _copy_weights(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(CopyWeightsRequest, read_json(body))
        session = ClientSession(
            session_id=f"copy-{request.headers.get('X-Idempotency-Key') or uuid.uuid4()}",
            user_metadata=None,
            display_name=f"copy of {asked.source_path}",
            created=datetime.now(UTC),
        )
        path = self._files.copy_checkpoint(asked.source_path, session, _expiry(asked.ttl_seconds))
        return Result.json({"tinker_path": str(path)})

    async def _list_runs(self, request: web.Request, body: bytes) -> Result:
        infos = self._files.runs()
        offset, limit = _page(request)
        return Result.json(
            {
                "training_runs": [self._run_json(info) for info in infos[offset : offset + limit]],
                "cursor": {"offset": offset, "limit": limit, "total_count": len(infos)},
            }
        )

    async def _get_run(self, request: web.Request, body: bytes) -> Result:
        return Result.json(self._run_json(self._trainer.info(request.match_info["model_id"])))

    async def _list_checkpoints(self, request: web.Request, body: bytes) -> Result:
        model_id = request.match_info["model_id"]
        self._trainer.info(model_id)
        found = self._checkpoints(model_id)
        return Result.json({"checkpoints": [each.model_dump(mode="json") for each in found]})

    async def _all_checkpoints(self, request: web.Request, body: bytes) -> Result:
        found = [each for info in self._files.runs() for each in self._checkpoints(info.model_id)]
        found.sort(key=lambda each: each.time, reverse=True)
        offset, limit = _page(request)
        return Result.json(
            {
                "checkpoints": [each.model_dump(mode="json") for each in found[offset : offset + limit]],
                "cursor": {"offset": offset, "limit": limit, "total_count": len(found)},
            }
        )

    async def _delete_checkpoint(self, request: web.Request, body: bytes) -> Result:
        self._files.delete_checkpoint(self._checkpoint_path(request))
        return Result.json({})

    async def _set_ttl(self, request: web.Request, body: bytes) -> Result:
        expires_at = _expiry(read_json(body).get("ttl_seconds"))
        self._files.set_expiry(self._checkpoint_path(request), expires_at)
        return Result.json({})

    async def _list_sessions(self, request: web.Request, body: bytes) -> Result:
        offset, limit = _page(request)
        return Result.json(
            {"sessions": [each.session_id for each in self._files.sessions()[offset : offset + limit]]}
        )

    async def _search_sessions(self, request: web.Request, body: bytes) -> Result:
        asked = read_request(SessionSearchRequest, read_json(body))
        found = [each for each in self._files.sessions() if self._matches(each, asked)]
        if (before := asked.cursor) is not None:
            place = (before.last_created_at, before.last_session_id)
            found = [each for each in found if (each.created, each.session_id) < place]
        page = found[: asked.limit]
        cursor = None
        if len(page) < len(found):
            cursor = SessionSearchCursor(
                last_created_at=page[-1].created, last_session_id=page[-1].session_id
            )
        runs = self._files.runs()
        response = SessionSearchResponse(
            sessions=[self._summary(each, runs) for each in page], next_cursor=cursor
        )
        return Result("json", response.model_dump_json().encode())

    async def _get_session(self, request: web.Request, body: bytes) -> Result:
        session = self._files.require_session(request.match_info["session_id"])
        runs = [info.model_id for info in self._files.runs() if info.session_id == session.session_id]
        return Result.json(
            {
                "training_run_ids": runs,
                "sampler_ids": self._files.sampler_ids(session.session_id),
                "user_metadata": _as_texts(session.user_metadata),
                "display_name": session.display_name,
            }
        )

    async def _finish_session(self, request: web.Request, body: bytes) -> Result:
        session = self._files.require_session(request.match_info["session_id"])
        if session.finished is None:
            finished = read_request(ClientSessionFinished, read_json(body))
            self._files.write(
                "sessions", session.session_id, session.model_copy(update={"finished": finished})
            )
        self._trainer.forget_session(session.session_id)
        return Result.json({})

    async def _get_sampler(self, request: web.Request, body: bytes) -> Result:
        sampler = self._files.require_sampler(request.match_info["sampler_id"])
        return Result.json(
            {
                "sampler_id": sampler.sampler_id,
                "base_model": sampler.base_model,
                "model_path": sampler.model_path,
            }
        )

    def _checkpoint_path(self, request: web.Request) -> CheckpointPath:
        found = request.match_info
        return CheckpointPath.parse(f"tinker://{found['model_id']}/{found['kind']}/{found['name']}")

    def _checkpoints(self, model_id: str) -> list[Checkpoint]:
        run = self._files.run(model_id)
        return [] if run is None else run.checkpoints(model_id)

    def _run_json(self, info: TrainingRunInfo) -> dict[str, Any]:
        run = self._files.run(info.model_id)
        assert run is not None
        newest = {each.checkpoint_type: each for each in run.checkpoints(info.model_id)}
        return TrainingRun(
            training_run_id=info.model_id,
            base_model=info.base_model,
            model_owner=_OWNER,
            is_lora=True,
            lora_rank=info.lora.rank,
            last_request_time=datetime.fromtimestamp(run.journal.stat().st_mtime, UTC),
            last_checkpoint=newest.get("training"),
            last_sampler_checkpoint=newest.get("sampler"),
            user_metadata=_as_texts(info.user_metadata),
        ).model_dump(mode="json")

    def _summary(self, session: ClientSession, runs: list[TrainingRunInfo]) -> SessionSummary:
        own = [each.model_id for each in runs if each.session_id == session.session_id]
        checkpoints = [each for model_id in own for each in self._checkpoints(model_id)]
        return SessionSummary(
            session_id=session.session_id,
            created_at=session.created,
            owner=_OWNER,
            project_id="",
            status=self._status(session),
            checkpoints_count=len(checkpoints),
            display_name=session.display_name,
            user_metadata=_as_texts(session.user_metadata),
            checkpoint_storage_bytes=sum(each.size_bytes or 0 for each in checkpoints),
        )

    def _status(self, session: ClientSession) -> SessionStatus | None:
        if session.finished is not None:
            return session.finished
        return SessionActive() if self._trainer.hears(session.session_id) else None

    def _matches(self, session: ClientSession, asked: SessionSearchRequest) -> bool:
        """Whether a session is searched for; this server has one owner and no projects."""
        if asked.project_ids:
            return False
        if isinstance(asked.owner, UserSearchOwner) and _OWNER not in asked.owner.owner_urns:
            return False
        name = (session.display_name or "").lower()
        either = []
        if asked.session_id is not None:
            either.append(session.session_id == asked.session_id)
        if asked.display_name is not None:
            either.append(all(word in name for word in asked.display_name.lower().split()))
        metadata = _as_texts(session.user_metadata) or {}
        return (
            (any(either) or not either)
            and asked.user_metadata.items() <= metadata.items()
            and (
                asked.statuses is None
                or any(_has_status(self._status(session), each) for each in asked.statuses)
            )
        )


def _has_status(status: SessionStatus | None, asked: SessionStatusQuery) -> bool:
    match asked:
        case ActiveSessionStatusQuery():
            return isinstance(status, SessionActive)
        case ClientFinishedSessionStatusQuery(reasons=reasons):
            return isinstance(status, ClientSessionFinished) and (
                reasons is None or status.reason.type in reasons
            )
        case _:
            return False


def _as_texts(metadata: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if metadata is None else {key: str(value) for key, value in metadata.items()}


def _expiry(seconds: object) -> datetime | None:
    """The end of a time to live. Raises DataError for what is no such time."""
    if seconds is None:
        return None
    if not isinstance(seconds, int) or seconds < _MIN_TTL_SECONDS:
        raise DataError(f"ttl_seconds is {seconds!r}; write {_MIN_TTL_SECONDS} or more, or null")
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _page(request: web.Request) -> tuple[int, int]:
    try:
        offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 20))
    except ValueError:
        raise DataError("offset and limit are numbers") from None
    return max(offset, 0), min(max(limit, 1), 1000)
