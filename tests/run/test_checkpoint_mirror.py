"""Mirror of checkpoints: a run whose own folder is lost resumes from it."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from strop.data.sources.data_path import resolve_path
from strop.errors import CheckpointError, ConfigError, DataError
from strop.run.state import checkpoint_mirror
from strop.runs.folder import RunFolder
from strop.training.checkpoints.checkpoint import latest
from tests.files import digest

from .results import checkpoint, steps_of, train


@pytest.fixture
def small(values):
    """The values of a run with a mirror."""

    def make(name: str, url: str, duration: str = "2 steps", **changes):
        return values(
            name=name,
            checkpoint={"every": "1 steps", "keep": 1, "mirror": url},
            trainer__duration=duration,
            data__eval=[],
            evaluate={},
            **changes,
        )

    return make


def assert_fetched(folder: Path, url: str) -> None:
    """The last start of the run began with the mirror's checkpoint of step 2."""
    session = json.loads((folder / "run.json").read_text())["sessions"][-1]
    assert f"step-000002 was fetched from {url}" in session["notes"][0] and session["from_step"] == 2


def mirrored(url: str) -> list[str]:
    files, root = url_to_fs(url)
    return [Path(path).name for path in files.ls(f"{root}/checkpoints", detail=False)]


def test_a_damaged_checkpoint_is_replaced_by_the_copy_in_the_mirror(small, tmp_path):
    run = small("damaged", str(tmp_path / "copy"))
    damaged = checkpoint(train(run).folder, 2) / "weights.safetensors"
    good = damaged.read_bytes()
    damaged.write_bytes(good[:-8])
    assert_fetched(train(run).folder, run["checkpoint"]["mirror"])
    assert damaged.read_bytes() == good


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


def test_a_lost_folder_is_fetched_from_the_mirror_and_what_the_store_refuses_is_repeated(
    small, tmp_path, store, caplog
):
    """Each save is refused at first, once with an error that only the store's library knows."""
    url = f"flaky://{tmp_path.name}/copy"
    store.refusals = 2
    folder = train(small("flaky", url)).folder
    assert store.refusals == 0
    said = [record.getMessage() for record in caplog.records if "checkpoint.mirror" in record.getMessage()]
    refused = "cannot be written: connection reset by the store. Again in 0.01 s."
    assert said == [f"checkpoint.mirror: {url} {refused}"] * 2
    assert mirrored(url) == ["step-000002"], "as kept"
    before = {path.name: digest(path) for path in checkpoint(folder, 2).iterdir()}
    shutil.rmtree(folder)
    store.refusals, store.error = 1, RuntimeError("a library's own error")
    assert steps_of(train(small("flaky", url, "3 steps", checkpoint__keep=None)).folder) == [0, 1, 2, 3]
    assert_fetched(folder, url)
    assert {path.name: digest(path) for path in checkpoint(folder, 2).iterdir()} == before
    assert mirrored(url) == ["step-000002", "step-000003"]


def test_a_kill_at_each_file_that_is_fetched_is_made_good_by_the_next_start(small, tmp_path, monkeypatch):
    """A fake: the copy of one file ends half-way, as the process would."""
    url = str(tmp_path / "copy")
    whole = train(small("whole", url)).folder
    wanted = [checkpoint(whole, 2) / "manifest.json", checkpoint(whole, 2) / "weights.safetensors"]
    wanted += [whole / name for name in ("run.yaml", "metrics.jsonl")]
    mirror = checkpoint_mirror.CheckpointMirror(url)
    get = checkpoint_mirror.CheckpointMirror._get
    cut, was_cut = 0, True
    while was_cut:
        fetched, was_cut, left = RunFolder(tmp_path / f"cut-{cut}"), False, cut

        def get_or_end(self, name: str, file: Path) -> None:
            nonlocal was_cut, left
            get(self, name, file)
            left -= 1
            if left == -1:
                file.write_bytes(file.read_bytes()[:7])
                was_cut = True
                raise KeyboardInterrupt

        fetched.create()
        monkeypatch.setattr(checkpoint_mirror.CheckpointMirror, "_get", get_or_end)
        with suppress(KeyboardInterrupt):
            mirror.fetch(fetched)
        monkeypatch.undo()
        if latest(fetched.checkpoints)[0] is None:  # the condition under which a start fetches
            mirror.fetch(fetched)
        assert [digest(fetched.path / file.relative_to(whole)) for file in wanted] == [
            *map(digest, wanted)
        ], cut
        cut += 1
    assert cut > 5


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("reset"), "cannot be written after 3 attempts: reset. The checkpoints in"),
        (PermissionError("no such key"), "cannot be written: no such key. The checkpoints in"),
    ],
)
def test_a_store_that_fails_ends_the_run_with_one_paragraph_and_loses_nothing(
    small, tmp_path, store, error, said
):
    url = f"flaky://{tmp_path.name}/copy"
    run = small("failing", url)
    store.refusals, store.error = 10**6, error
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        train(run)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "runs" / "strop" / "failing"
    assert (checkpoint(folder, 1) / "manifest.json").exists()
    store.refusals = 0
    assert steps_of(train(run).folder) == [0, 1, 2]
    assert mirrored(url) == ["step-000002"]


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


@pytest.mark.nightly
def test_a_run_starts_again_from_an_object_store_alone(small, bucket, monkeypatch):
    """`pip install "moto[server]" s3fs`; the store is gone in the end."""
    url, server = bucket
    shutil.rmtree(train(small("stored", url)).folder)
    folder = train(small("stored", url, "3 steps")).folder
    assert_fetched(folder, url)
    assert steps_of(folder) == [0, 1, 2, 3]
    monkeypatch.setattr(checkpoint_mirror, "_PAUSES_SECONDS", (0.1,))
    server.stop()
    with pytest.raises(
        CheckpointError, match=r"s3://mirror/copy cannot be created after 2 attempts: Could not conn"
    ):
        train(small("stored", url, "4 steps"))


def test_a_mirror_that_holds_another_run_is_refused(small, tmp_path):
    url = str(tmp_path / "copy")
    train(small("one", url, "1 steps"))
    with pytest.raises(CheckpointError, match="different configuration: seed was 1, is 7"):
        train(small("two", url, seed=7))
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        train(small("three", url, resume="never"))
    weights = next((tmp_path / "copy" / "checkpoints").glob("step-*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointError, match="is damaged"):
        train(small("one", url, "1 steps"))


def test_a_mirror_of_the_runs_own_folder_or_of_an_unknown_kind_is_refused(small, tmp_path):
    with pytest.raises(CheckpointError, match="is the run's own folder"):
        train(small("own", str(tmp_path / "runs" / "strop" / "own")))
    with pytest.raises((ConfigError, DataError)) as caught:
        train(small("other", "s3://bucket/x"))
    assert len(str(caught.value).splitlines()) == 1
