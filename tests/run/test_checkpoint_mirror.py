"""Mirror of checkpoints: a run whose own folder is lost resumes from it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

import strop
from strop.data.sources.data_path import resolve_path
from strop.errors import CheckpointError, ConfigError, DataError
from strop.run.state import checkpoint_mirror


def small(values, tmp_path: Path, name: str, url: str | None, duration: str = "2 steps"):
    run = values(name=name, checkpoint={"every": "1 steps", "keep": 1, "mirror": url})
    run["trainer"]["duration"] = duration
    run["evaluate"] = {"at_start": False}
    run["output"] = str(tmp_path / "runs")
    return run


def rows(folder: Path):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = ("step", "reward/mean", "grad_norm", "policy_loss")
    return [{key: row.get(key) for key in kept} for row in map(json.loads, lines)]


@pytest.mark.slow
def test_a_lost_folder_is_fetched_from_the_mirror_and_the_run_resumes(values, tmp_path):
    url = f"memory://{tmp_path.name}/copy"
    first = strop.train(strop.load(small(values, tmp_path, "lost", url)))
    files = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}/copy"
    assert [Path(p).name for p in files.ls(f"{root}/checkpoints", detail=False)] == ["step-000002"], "as kept"
    shutil.rmtree(first.folder)
    second = strop.train(strop.load(small(values, tmp_path, "lost", url, "3 steps")))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from" in sessions[-1]["notes"][0] and sessions[-1]["from_step"] == 2
    whole = strop.train(strop.load(small(values, tmp_path, "whole", None, "3 steps")))
    assert rows(second.folder) == rows(whole.folder)
    assert [Path(p).name for p in files.ls(f"{root}/checkpoints", detail=False)] == ["step-000003"]


def test_a_damaged_checkpoint_is_replaced_by_the_copy_in_the_mirror(values, tmp_path):
    url = str(tmp_path / "copy")
    first = strop.train(strop.load(small(values, tmp_path, "damaged", url)))
    weights = first.folder / "checkpoints" / "step-000002" / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-8])
    second = strop.train(strop.load(small(values, tmp_path, "damaged", url)))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from" in sessions[-1]["notes"][0] and sessions[-1]["from_step"] == 2
    assert weights.read_bytes() == good


def test_a_kill_while_the_mirror_is_written_leaves_its_old_files(tmp_path, monkeypatch):
    """A fake: the copy ends half-way, as the process would."""

    def copy_half(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:4])
        raise KeyboardInterrupt

    for name, text in (("new", "new content"), ("run.yaml", "old content")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(shutil, "copyfile", copy_half)
    with pytest.raises(KeyboardInterrupt):
        resolve_path(str(tmp_path / "run.yaml")).put(tmp_path / "new")
    assert (tmp_path / "run.yaml").read_text() == "old content"


class FlakyStore(MemoryFileSystem):
    """A fake object store: each of its next `refusals` writes and reads fails with `error`."""

    protocol = "flaky"
    refusals: ClassVar[int] = 0
    error: ClassVar[Exception] = ConnectionError("connection reset by the store")

    def _refuse(self) -> None:
        if FlakyStore.refusals > 0:
            FlakyStore.refusals -= 1
            raise FlakyStore.error

    def put_file(self, *args, **kwargs):
        self._refuse()
        return super().put_file(*args, **kwargs)

    def get_file(self, *args, **kwargs):
        self._refuse()
        return super().get_file(*args, **kwargs)


@pytest.fixture
def store(monkeypatch):
    fsspec.register_implementation("flaky", FlakyStore, clobber=True)
    monkeypatch.setattr(checkpoint_mirror, "_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(FlakyStore, "refusals", 0)
    return FlakyStore


@pytest.mark.slow
def test_what_a_store_refuses_is_repeated(values, tmp_path, store, caplog):
    """Each save is refused at first, once with an error that only the store's library knows."""
    url = f"flaky://{tmp_path.name}/copy"
    store.refusals = 2
    first = strop.train(strop.load(small(values, tmp_path, "flaky", url)))
    assert store.refusals == 0
    assert [
        record.getMessage() for record in caplog.records if "checkpoint.mirror" in record.getMessage()
    ] == [f"checkpoint.mirror: {url} cannot be written: connection reset by the store. Again in 0.01 s."] * 2
    shutil.rmtree(first.folder)
    store.refusals, store.error = 1, RuntimeError("a library's own error")
    second = strop.train(strop.load(small(values, tmp_path, "flaky", url, "3 steps")))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from" in sessions[-1]["notes"][0] and sessions[-1]["from_step"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("reset"), "cannot be written after 3 attempts: reset. The checkpoints in"),
        (PermissionError("no such key"), "cannot be written: no such key. The checkpoints in"),
    ],
)
def test_a_store_that_fails_ends_the_run_with_one_paragraph_and_loses_nothing(
    values, tmp_path, store, error, said
):
    url = f"flaky://{tmp_path.name}/copy"
    run = small(values, tmp_path, "failing", url)
    store.refusals, store.error = 10**6, error
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        strop.train(strop.load(run))
    assert "\n" not in str(caught.value)
    folder = tmp_path / "runs" / "strop" / "failing"
    assert (folder / "checkpoints" / "step-000001" / "manifest.json").exists()
    store.refusals = 0
    resumed = strop.train(strop.load(run))
    whole = strop.train(strop.load(small(values, tmp_path, "undisturbed", None)))
    assert rows(resumed.folder) == rows(whole.folder)
    files, root = url_to_fs(url)
    assert [Path(p).name for p in files.ls(f"{root}/checkpoints", detail=False)] == ["step-000002"]


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of a server on this machine with the protocol of S3."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    boto3.client("s3").create_bucket(Bucket="mirror")
    yield "s3://mirror/copy", server
    server.stop()


@pytest.mark.evidence
def test_a_run_starts_again_from_an_object_store_alone(values, tmp_path, bucket, monkeypatch):
    """`pip install "moto[server]" s3fs`; the store is gone in the end."""
    url, server = bucket
    first = strop.train(strop.load(small(values, tmp_path, "stored", url)))
    shutil.rmtree(first.folder)
    second = strop.train(strop.load(small(values, tmp_path, "stored", url, "3 steps")))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from s3://mirror/copy" in sessions[-1]["notes"][0]
    whole = strop.train(strop.load(small(values, tmp_path, "whole", None, "3 steps")))
    assert rows(second.folder) == rows(whole.folder)
    monkeypatch.setattr(checkpoint_mirror, "_PAUSES_SECONDS", (0.1,))
    server.stop()
    with pytest.raises(
        CheckpointError, match=r"s3://mirror/copy cannot be created after 2 attempts: Could not conn"
    ):
        strop.train(strop.load(small(values, tmp_path, "stored", url, "4 steps")))


def test_a_mirror_that_holds_another_run_is_refused(values, tmp_path):
    url = str(tmp_path / "copy")
    strop.train(strop.load(small(values, tmp_path, "one", url, "1 steps")))
    other = small(values, tmp_path, "two", url, "1 steps")
    other["seed"] = 7
    with pytest.raises(CheckpointError, match="different configuration: seed was 1, is 7"):
        strop.train(strop.load(other))
    anew = small(values, tmp_path, "three", url, "1 steps")
    anew["resume"] = "never"
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        strop.train(strop.load(anew))
    weights = next((tmp_path / "copy" / "checkpoints").glob("step-*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointError, match="is damaged"):
        strop.train(strop.load(small(values, tmp_path, "one", url, "1 steps")))


def test_an_unusable_mirror_is_refused(values, tmp_path):
    with pytest.raises(DataError, match="nowhere://x cannot be opened"):
        strop.train(strop.load(small(values, tmp_path, "a", "nowhere://x")))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint\.mirror: .* cannot be created"):
        strop.train(strop.load(small(values, tmp_path, "b", str(tmp_path / "file" / "in"))))
    own = small(values, tmp_path, "d", str(tmp_path / "runs" / "strop" / "d"))
    with pytest.raises(CheckpointError, match="is the run's own folder"):
        strop.train(strop.load(own))
    with pytest.raises((ConfigError, DataError)) as caught:
        strop.train(strop.load(small(values, tmp_path, "c", "s3://bucket/x")))
    assert len(str(caught.value).splitlines()) == 1
