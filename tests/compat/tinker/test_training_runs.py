"""Journal and states of a training run."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as proto
from tinker.types import LoraConfig

from strop.compat.tinker.adapter_engine import AdapterEngines
from strop.compat.tinker.store import CheckpointInfo, CheckpointPath, ServiceFiles, TrainingRunInfo
from strop.compat.tinker.training import TrainedAdapter
from strop.compat.tinker.training_runs import Result, TrainingRun
from strop.config.schema.model import ModelConfig
from strop.errors import DataError
from strop.runs.metrics_file import MetricsRow, read_metrics
from strop.runs.overview import run_overview
from tests.compat.tinker.conftest import no_space

STEP = b'{"model_id": "s:train:0", "adam_params": {"learning_rate": 0.01}}'
SAVE = b'{"model_id": "s:train:0", "path": "kept"}'


def loss(token: int) -> bytes:
    ids = np.array([21, 15, token, 31], np.int32)
    message = proto.ForwardBackwardRequest(model_id="s:train:0", seq_id=1, loss_fn="cross_entropy")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = ids[:-1].tobytes()
    targets = proto.Tensor(dtype=proto.DTYPE_INT64, dense=ids[1:].astype(np.int64).tobytes(), shape=[3])
    datum.loss_fn_inputs["target_tokens"].CopyFrom(targets)
    return bytes(message.SerializeToString())


REQUESTS = [
    *[("forward_backward", loss(41)), ("optim_step", STEP), ("save_weights", SAVE)],
    *[("forward_backward", loss(42)), ("forward_backward", loss(43)), ("optim_step", STEP)],
    *[("forward_backward", loss(44)), ("optim_step", STEP), ("forward", loss(45))],
]


def created(folder: Path, starts_from: str | None = None) -> ServiceFiles:
    """Files with one training run."""
    service = ServiceFiles(folder)
    info = TrainingRunInfo(
        model_id="s:train:0",
        session_id="s",
        base_model="tiny",
        lora=LoraConfig(rank=2, seed=1),
        user_metadata=None,
        created=datetime.now(UTC),
        starts_from=starts_from,
    )
    service.create_run(info)
    return service


def opened(service: ServiceFiles, model: Path) -> TrainingRun:
    files = service.run("s:train:0")
    assert files is not None
    return TrainingRun(
        files,
        service,
        lambda info: TrainedAdapter(ModelConfig(path=str(model)), info.lora, 64, 300, AdapterEngines()),
    )


def end_process() -> None:
    """Free the locks of runs that nothing names any longer, as the end of their process does."""
    gc.collect()


def run(training: TrainingRun, first: int, end: int) -> list[Result]:
    found = []
    for seq in range(first, end):
        kind, body = REQUESTS[seq - 1]
        training.files.write_request(seq, kind, body)
        found.append(training.execute(seq, kind, body))
    return found


def _without_memory(row: MetricsRow) -> MetricsRow:
    return {name: value for name, value in row.items() if name != "memory/peak_mb"}


@pytest.mark.parametrize("states", ["every step", "only the first"])
@pytest.mark.parametrize("killed", [2, 4, 5, 7, 8])
def test_a_run_goes_on_from_its_journal(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, states: str, killed: int
) -> None:
    """The process ends before request `killed` is computed, which is written."""
    share = 1e9 if states == "every step" else 1e-9
    monkeypatch.setattr("strop.compat.tinker.training_runs._STATE_SHARE", share)
    services = [created(tmp_path / name) for name in ("whole", "parts")]
    expected = run(opened(services[0], model), 1, len(REQUESTS) + 1)
    first = opened(services[1], model)
    found = run(first, 1, killed)
    first.files.write_request(killed, *REQUESTS[killed - 1])
    del first
    end_process()
    second = opened(services[1], model)
    assert second.next_seq == killed + 1
    second.open()
    kept = second.result(killed)
    assert kept is not None
    found += [kept, *run(second, killed + 1, len(REQUESTS) + 1)]
    assert [each.kind for each in found] == [each.kind for each in expected]
    assert [each.body for each in found] == [each.body for each in expected]
    second.close("finished")
    folders = [tmp_path / name / "runs/s:train:0" for name in ("whole", "parts")]
    rows = [[_without_memory(row) for row in read_metrics(folder / "metrics.jsonl")] for folder in folders]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == [1, 2, 3]
    overview = run_overview(folders[1])
    assert (overview.status, overview.step) == ("finished", 3)


def test_a_request_before_its_turn_waits_over_a_restart(tmp_path: Path, model: Path) -> None:
    """Parts of a batch are sent at once: the second one was acknowledged when the service ended, the first was not."""
    service = created(tmp_path)
    first = opened(service, model)
    run(first, 1, 3)
    first.files.write_request(4, *REQUESTS[3])
    del first
    end_process()
    second = opened(service, model)
    assert second.next_seq == 3 and second.waiting == {4: REQUESTS[3]}
    second.open()
    assert second.result(4) is None
    assert [each.kind for each in run(second, 3, 5)] == ["json", "protobuf"]


def test_a_run_that_could_not_be_opened_is_opened_by_a_later_request(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps no lock of its first attempt, which the second one would wait for."""
    monkeypatch.setattr("strop.runs.lock._ENDING_TIMEOUT_SECONDS", 0)
    start = CheckpointPath("s:train:0", "weights", "start")
    service = created(tmp_path, starts_from=str(start))
    training = opened(service, model)
    assert b"there is no checkpoint" in training.execute(1, *REQUESTS[0]).body
    source = TrainedAdapter(
        ModelConfig(path=str(model)), LoraConfig(rank=2, seed=1), 64, 300, AdapterEngines()
    )
    source.write_state(training.files.begin_checkpoint(start, overwrite=False))
    info = CheckpointInfo(time=datetime.now(UTC), lora=LoraConfig(rank=2), base_model="tiny")
    training.files.finish_checkpoint(start, info)
    with monkeypatch.context() as patch:
        patch.setattr(TrainedAdapter, "write_state", no_space)
        assert b"No space left" in training.execute(1, *REQUESTS[0]).body
    assert [each.kind for each in run(training, 1, 3)] == ["protobuf", "json"]


@pytest.mark.parametrize(
    "text", ["tinker://a/weights/../b", "file:///etc", "tinker://a/other/b", "tinker://a/weights/.."]
)
def test_a_path_stays_in_the_folder(tmp_path: Path, text: str) -> None:
    files = created(tmp_path)
    with pytest.raises(DataError):
        CheckpointPath.parse(text)
    assert files.run("../run") is None and files.session("../x") is None


def test_an_expired_checkpoint_is_not_found(tmp_path):
    service = created(tmp_path)
    files, path = service.run("s:train:0"), CheckpointPath.parse("tinker://s:train:0/weights/kept")
    assert files is not None
    files.begin_checkpoint(path, overwrite=False)
    info = CheckpointInfo(time=datetime.now(UTC), lora=LoraConfig(rank=2), base_model="tiny")
    files.finish_checkpoint(path, info)
    service.find_checkpoint(str(path))
    service.set_expiry(path, datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(DataError, match="has expired at"):
        service.find_checkpoint(str(path))
