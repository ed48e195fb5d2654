"""Files of a Tinker service: sessions, training runs with their journals, checkpoints, recorded samples.

Each training run is a folder:

    training_run.json   what the client asked for
    run.json, run.yaml, metrics.jsonl   as in every run folder
    state/SEQ/          adapter and optimizer after request SEQ
    journal/SEQ.request each request that is not in a state yet, written before it is acknowledged
    journal/SEQ.result  its result
    weights/NAME/       checkpoints of the client, to train on
    sampler_weights/NAME/   adapters of the client in PEFT's format, to sample from
    external_weights/NAME/  the same, to download
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from tinker.types import Checkpoint, CheckpointType, ClientSessionFinished, LoraConfig

from strop.errors import DataError
from strop.inference.endpoint.request import BadRequest
from strop.types import FloatArray, IntArray
from strop.workers.files import atomic_path, atomic_write

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ID = re.compile(r"[A-Za-z0-9:_-]{1,200}")
_PATH = re.compile(r"tinker://([A-Za-z0-9:_-]+)/(weights|sampler_weights|external_weights)/([A-Za-z0-9._-]+)")
_KINDS: Mapping[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
_MADE_BY = {"weights": "save_state", "sampler_weights": "save_weights_for_sampler"}
"""Method of the SDK that makes a kind of checkpoints."""
_RUN_FILE = "training_run.json"
_RECORDED_DAYS = 1
"""Time for which recorded samples are kept."""
_KEPT_EPHEMERAL = 16
"""Number of unnamed sampler weights of a run that are kept."""
EPHEMERAL = "ephemeral-"
"""Start of the names of sampler weights that the client has not named."""


class ClientSession(BaseModel):
    """A client's session."""

    session_id: str
    user_metadata: dict[str, Any] | None
    display_name: str | None
    created: datetime
    finished: ClientSessionFinished | None = None
    """End that the client reported."""


class SamplingSession(BaseModel):
    """Weights that a sampling client samples from."""

    sampler_id: str
    base_model: str
    model_path: str | None
    """A checkpoint; None for the base model."""
    inflight_of: str | None = None
    """Id of the training run whose latest in-flight weights it samples from, in place of `model_path`."""


class TrainingRunInfo(BaseModel):
    """A training run as its client asked for it."""

    model_id: str
    session_id: str
    base_model: str
    lora: LoraConfig
    user_metadata: dict[str, Any] | None
    created: datetime
    starts_from: str | None = None
    """Checkpoint that it starts from; None for a new adapter."""
    starts_with_optimizer: bool = False
    is_copy: bool = False
    """Whether it only holds copies of checkpoints."""


class CheckpointInfo(BaseModel):
    """Description of a checkpoint."""

    time: datetime
    lora: LoraConfig
    base_model: str
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None

    @property
    def has_expired(self) -> bool:
        """Whether the time to live is over."""
        return self.expires_at is not None and self.expires_at < datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CheckpointPath:
    """A `tinker://` path of a checkpoint of this service."""

    model_id: str
    kind: str
    """`weights`, `sampler_weights` or `external_weights`."""
    name: str

    @classmethod
    def parse(cls, text: str) -> CheckpointPath:
        """Raises DataError for another text."""
        if (match := _PATH.fullmatch(text)) is None or _NAME.fullmatch(match[3]) is None:
            raise DataError(
                f"{text!r} is no path of a checkpoint; write tinker://RUN/weights/NAME, "
                "tinker://RUN/sampler_weights/NAME or tinker://RUN/external_weights/NAME"
            )
        return cls(match[1], match[2], match[3])

    def __str__(self) -> str:
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"


def check_name(name: str) -> str:
    """The name of a checkpoint. Raises DataError for one that is no file name."""
    if _NAME.fullmatch(name) is None:
        raise DataError(f"the name {name!r}: write letters, digits, '.', '_' and '-', at most 100")
    return name


class RunFiles:
    """The folder of one training run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"

    def info(self) -> TrainingRunInfo:
        return TrainingRunInfo.model_validate_json((self.folder / _RUN_FILE).read_text())

    def state(self) -> tuple[int, Path] | None:
        """The last request in the newest state, and its folder; None without one."""
        numbers = [int(each.name) for each in (self.folder / "state").glob("*") if each.name.isdigit()]
        return (max(numbers), self.folder / "state" / str(max(numbers))) if numbers else None

    def begin_state(self) -> Path:
        """An empty folder to write a state into."""
        return _emptied(self.folder / "state" / "writing")

    def finish_state(self, seq: int) -> None:
        """Make what was written the state after a request, and delete what it replaces.

        Results since the state before stay, for a client that has not read them.
        """
        before = self.state()
        (self.folder / "state" / "writing").rename(self.folder / "state" / str(seq))
        if before is not None:
            shutil.rmtree(before[1])
        for path in [*self.journal.glob("*.request"), *self.journal.glob("*.result")]:
            number = int(path.stem)
            if number <= seq and (path.suffix == ".request" or (before is not None and number <= before[0])):
                path.unlink()

    def write_request(self, seq: int, kind: str, body: bytes) -> None:
        """Keep a request before it is acknowledged."""
        with atomic_path(self.journal / f"{seq}.request") as file:
            file.write_bytes(kind.encode() + b"\n" + body)

    def requests(self, after: int) -> Iterator[tuple[int, str, bytes]]:
        """Number, kind and body of the requests after one, in order."""
        numbers = sorted(int(each.stem) for each in self.journal.glob("*.request"))
        for number in numbers:
            if number > after:
                kind, _, body = (self.journal / f"{number}.request").read_bytes().partition(b"\n")
                yield number, kind.decode(), body

    def checkpoint(self, path: CheckpointPath) -> Path:
        return self.folder / path.kind / path.name

    def begin_checkpoint(self, path: CheckpointPath, *, overwrite: bool) -> Path:
        """An empty folder to write a checkpoint into. Raises DataError for a name that is taken."""
        if self.checkpoint(path).exists() and not overwrite:
            raise DataError(f"{path} exists; write another name, or overwrite=True")
        return _emptied(self.folder / path.kind / f".writing-{path.name}")

    def finish_checkpoint(self, path: CheckpointPath, info: CheckpointInfo) -> None:
        """Make what was written a checkpoint."""
        written = self.folder / path.kind / f".writing-{path.name}"
        (written / "checkpoint.json").write_text(info.model_dump_json())
        target = self.checkpoint(path)
        if target.exists():
            shutil.rmtree(target)
        written.rename(target)
        if path.name.startswith(EPHEMERAL):
            unnamed = sorted(
                target.parent.glob(f"{EPHEMERAL}*"), key=lambda each: int(each.name[len(EPHEMERAL) :])
            )
            for old in unnamed[:-_KEPT_EPHEMERAL]:
                shutil.rmtree(old)

    def checkpoints(self, model_id: str) -> list[Checkpoint]:
        """The named checkpoints, oldest first; expired ones are deleted."""
        found = []
        for kind, type_ in _KINDS.items():
            for file in (self.folder / kind).glob("*/checkpoint.json"):
                folder = file.parent
                if folder.name.startswith((".", EPHEMERAL)):
                    continue
                info = CheckpointInfo.model_validate_json(file.read_text())
                if info.has_expired:
                    shutil.rmtree(folder)
                    continue
                found.append(
                    Checkpoint(
                        checkpoint_id=f"{kind}/{folder.name}",
                        checkpoint_type=type_,
                        time=info.time,
                        tinker_path=f"tinker://{model_id}/{kind}/{folder.name}",
                        size_bytes=sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()),
                        user_metadata=info.user_metadata,
                        expires_at=info.expires_at,
                    )
                )
        return sorted(found, key=lambda each: each.time)


class ServiceFiles:
    """The folder of a service."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("sessions", "samplers", "sequences", "runs"):
            (root / name).mkdir(parents=True, exist_ok=True)
        oldest = (datetime.now(UTC) - timedelta(days=_RECORDED_DAYS)).timestamp()
        for file in (root / "sequences").iterdir():
            if file.stat().st_mtime < oldest:
                file.unlink()

    def write(self, kind: str, name: str, value: BaseModel) -> None:
        """Write a session or a sampler."""
        atomic_write(self.root / kind / f"{_checked(name)}.json", value.model_dump_json())

    def session(self, session_id: str) -> ClientSession | None:
        return _read(self.root / "sessions", session_id, ClientSession)

    def sessions(self) -> list[ClientSession]:
        """All sessions, newest first."""
        found = [
            ClientSession.model_validate_json(file.read_text())
            for file in (self.root / "sessions").glob("*.json")
        ]
        return sorted(found, key=lambda each: (each.created, each.session_id), reverse=True)

    def require_session(self, session_id: str) -> ClientSession:
        """Raises BadRequest if there is none."""
        if (session := self.session(session_id)) is None:
            raise BadRequest(f"there is no session {session_id[:80]!r}", status=404)
        return session

    def require_sampler(self, sampler_id: str) -> SamplingSession:
        """Raises BadRequest if there is none."""
        if (sampler := self.sampler(sampler_id)) is None:
            raise BadRequest(f"there is no sampler {sampler_id[:80]!r}", status=404)
        return sampler

    def sampler(self, sampler_id: str) -> SamplingSession | None:
        return _read(self.root / "samplers", sampler_id, SamplingSession)

    def sampler_ids(self, session_id: str) -> list[str]:
        return sorted(file.stem for file in (self.root / "samplers").glob(f"{_checked(session_id)}:*.json"))

    def run(self, model_id: str) -> RunFiles | None:
        """The folder of a training run; None for one that does not exist."""
        if _ID.fullmatch(model_id) is None:
            return None
        folder = self.root / "runs" / model_id
        return RunFiles(folder) if (folder / _RUN_FILE).exists() else None

    def create_run(self, info: TrainingRunInfo) -> RunFiles:
        files = RunFiles(self.root / "runs" / _checked(info.model_id))
        files.journal.mkdir(parents=True, exist_ok=True)
        (files.folder / "state").mkdir(exist_ok=True)
        atomic_write(files.folder / _RUN_FILE, info.model_dump_json())
        return files

    def runs(self) -> list[TrainingRunInfo]:
        """All training runs, newest first."""
        found = [RunFiles(file.parent).info() for file in (self.root / "runs").glob(f"*/{_RUN_FILE}")]
        return sorted(found, key=lambda each: each.created, reverse=True)

    def find_checkpoint(self, text: str, kind: str | None = None) -> tuple[Path, CheckpointInfo]:
        """Folder and description of a checkpoint.

        Raises DataError if there is none at the path, or it has expired or is not of the kind `weights` or
        `sampler_weights`.
        """
        path = CheckpointPath.parse(text)
        if kind not in (None, path.kind):
            raise DataError(f"{text} has {path.kind}; write a path of {_MADE_BY[kind]}, with {kind}")
        files = self.run(path.model_id)
        if files is None or not (files.checkpoint(path) / "checkpoint.json").exists():
            raise DataError(f"there is no checkpoint {text}")
        folder = files.checkpoint(path)
        info = CheckpointInfo.model_validate_json((folder / "checkpoint.json").read_text())
        if info.has_expired:
            raise DataError(f"the checkpoint {text} has expired at {info.expires_at}")
        return folder, info

    def copy_checkpoint(
        self, text: str, session: ClientSession, expires_at: datetime | None
    ) -> CheckpointPath:
        """Copy a checkpoint into a run of its own, in a new session. Raises DataError if there is none."""
        folder, info = self.find_checkpoint(text)
        source = CheckpointPath.parse(text)
        run = TrainingRunInfo(
            model_id=f"{session.session_id}:train:0",
            session_id=session.session_id,
            base_model=info.base_model,
            lora=info.lora,
            user_metadata=info.user_metadata,
            created=session.created,
            is_copy=True,
        )
        path = CheckpointPath(run.model_id, source.kind, source.name)
        files = RunFiles(self.root / "runs" / _checked(run.model_id))
        if not files.checkpoint(path).exists():  # it is there if the client has asked before
            self.write("sessions", session.session_id, session)
            files = self.create_run(run)
            written = files.begin_checkpoint(path, overwrite=True)
            shutil.copytree(folder, written, dirs_exist_ok=True)
            copied = {"time": session.created, "expires_at": expires_at}
            files.finish_checkpoint(path, info.model_copy(update=copied))
        return path

    def delete_checkpoint(self, path: CheckpointPath) -> None:
        """Raises DataError if there is none."""
        folder, _ = self.find_checkpoint(str(path))
        shutil.rmtree(folder)

    def set_expiry(self, path: CheckpointPath, expires_at: datetime | None) -> None:
        """Set the time at which a checkpoint is deleted; None keeps it. Raises DataError if there is none."""
        folder, info = self.find_checkpoint(str(path))
        changed = info.model_copy(update={"expires_at": expires_at})
        atomic_write(folder / "checkpoint.json", changed.model_dump_json())

    def record_sequence(self, sequence_id: str, token_ids: IntArray, logprobs: FloatArray) -> None:
        """Keep a sampled sequence for `stable_reinforce`."""
        np.savez(
            self.root / "sequences" / f"{_checked(sequence_id)}.npz", token_ids=token_ids, logprobs=logprobs
        )

    def sequence(self, sequence_id: str) -> tuple[IntArray, FloatArray] | None:
        """Tokens and log-probs of a recorded sequence; reading it keeps it for another day."""
        if _ID.fullmatch(sequence_id) is None:
            return None
        file = self.root / "sequences" / f"{sequence_id}.npz"
        try:
            with np.load(file) as arrays:
                found = arrays["token_ids"], arrays["logprobs"]
        except FileNotFoundError:
            return None
        file.touch()
        return found


def encryption(recipients: Sequence[str]) -> Callable[[Path], Path]:
    """Replaces a file by the one that is encrypted for age's recipients, which it returns; the same without any.

    Raises DataError for what is no recipient, and without the package pyrage.
    """
    if not recipients:
        return lambda file: file
    try:
        pyrage = importlib.import_module("pyrage")
    except ImportError:
        raise DataError("age_encryption_recipients: the server needs the package pyrage for it") from None
    keys = []
    for text in recipients:
        try:
            kind = pyrage.x25519 if text.startswith("age1") else pyrage.ssh
            keys.append(kind.Recipient.from_str(text))
        except pyrage.RecipientError as error:
            raise DataError(
                f"age_encryption_recipients: {text[:80]!r} is no recipient of age: {error}"
            ) from None

    def encrypt(file: Path) -> Path:
        encrypted = file.with_name(f"{file.name}.age")
        pyrage.encrypt_file(str(file), str(encrypted), keys)
        file.unlink()
        return encrypted

    return encrypt


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    file = folder / f"{name}.json"
    if _ID.fullmatch(name) is None or not file.exists():
        return None
    return kind.model_validate_json(file.read_text())


def _checked(name: str) -> str:
    if _ID.fullmatch(name) is None:
        raise DataError(f"{json.dumps(name[:80])} is no id of this service")
    return name


def _emptied(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder
