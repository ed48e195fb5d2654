"""An explorer and a trainer on two hosts that share only a database and a folder.

Each has a working directory with copies of its inputs, a run folder of its own, and its own command.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

import strop
from strop.errors import RunFolderError
from strop.run.distributed.peers import registered_peer, shared_settings
from strop.run.entry.explore import explore
from strop.run.entry.train import train
from strop.run.rollout.tasks import load_tasks
from strop.run.tokenizer import load_run_tokenizer
from strop.sync.folder_store import FolderVersionStore
from tests.buffer.postgres import running_server
from tests.files import digest

from .command import StropCommand
from .test_distributed import without_clocks
from .test_launch import wait_for

pytest.importorskip("sqlalchemy")
GATED = """
import time
from pathlib import Path

def digit_share(completions, trainer_state, **columns):
    while trainer_state.global_step >= 4 and not Path(__file__).with_name("go_on").exists():
        time.sleep(0.02)
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]
"""
"""The reward `digit_share`, which waits at step 3, after four updates, until a test goes on."""


@pytest.fixture
def server():
    """A PostgreSQL server that both hosts can reach."""
    pytest.importorskip("psycopg")
    with running_server() as server:
        yield server


def host(tmp_path: Path, name: str, tiny: Path, values: dict) -> Path:
    """A working directory with copies of all inputs, and a run file with this host's paths."""
    folder = tmp_path / name
    shutil.copytree(tiny, folder / f"{name}-inputs")
    (folder / "rewards.py").write_text(GATED)
    own = {
        **values,
        "output": f"{name}-runs",
        "model": {"path": f"{name}-inputs/model"},
        "reward": {"functions": [{"function": "rewards.py:digit_share"}], "timeout_seconds": 900},
    }
    own["data"] = {
        **values["data"],
        "train": {"path": f"{name}-inputs/tasks.jsonl"},
        "eval": [{**values["data"]["eval"][0], "path": f"{name}-inputs/tasks.jsonl"}],
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(own))
    return folder


def start_role(folder: Path, mode: str) -> StropCommand:
    """The command of a host, whose output goes to a file in its folder."""
    return StropCommand(folder / "output.txt", "train", "run.yaml", f"mode={mode}", folder=folder)


def learned(path: Path) -> list[dict]:
    return [without_clocks(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_two_hosts_equal_one_process_despite_an_outage_of_their_database(server, values, tiny, tmp_path):
    reference = strop.train(strop.load(values(name="one")))
    shared = {
        "buffer": {"type": "sql", "url": server.url},
        "synchronizer": {"type": "checkpoint", "folder": str(tmp_path / "shared")},
    }
    hosts = {mode: host(tmp_path, mode, tiny, values(name="two", **shared)) for mode in ("explore", "train")}
    trainer, explorer = start_role(hosts["train"], "train"), start_role(hosts["explore"], "explore")
    folders = {mode: hosts[mode] / f"{mode}-runs" / "strop" / "two" for mode in hosts}
    wait_for(folders["train"] / "metrics.jsonl", lines=2, process=trainer)
    server.stop()
    trainer.wait_for("does not respond")
    server.start()
    (hosts["explore"] / "go_on").touch()
    output = {"train": trainer.finish(), "explore": explorer.finish()}
    assert "responds again" in output["train"]
    assert "Traceback" not in "".join(output.values())
    assert f"weights in {tmp_path / 'shared'}, buffer 'strop/two' in postgresql" in output["explore"]
    is_the_same(folders, reference)
    assert not list((tmp_path / "shared").glob("*.json")), "both have ended"


def is_the_same(folders: dict[str, Path], reference: strop.RunResult) -> None:
    """The run equals the run in one process bit for bit."""
    one = {row["step"]: row for row in learned(reference.folder / "metrics.jsonl")}
    trained = learned(folders["train"] / "metrics.jsonl")
    explored = learned(folders["explore"] / "explorer" / "metrics.jsonl")
    assert [row["step"] for row in trained if "loss" in row] == list(range(1, reference.steps + 1))
    for row in (*trained, *explored):
        assert row.items() <= one[row["step"]].items()
    weights = "model.safetensors"
    assert digest(folders["train"] / "model" / weights) == digest(reference.model / weights)


@pytest.mark.slow
@pytest.mark.nightly
def test_explorer_and_trainer_are_killed_and_restarted_by_hand(values, tiny, tmp_path):
    length = {"trainer__duration": "8 steps"}
    reference = strop.train(strop.load(values(name="one", **length)))
    shared = {
        "buffer": {"type": "sql", "url": f"sqlite:///{tmp_path / 'groups.db'}"},
        "synchronizer": {"type": "checkpoint", "folder": str(tmp_path / "shared")},
    }
    both = ("explore", "train")
    hosts = {mode: host(tmp_path, mode, tiny, values(name="two", **shared, **length)) for mode in both}
    folders = {mode: hosts[mode] / f"{mode}-runs" / "strop" / "two" for mode in both}
    (hosts["explore"] / "go_on").touch()
    at_work = {mode: start_role(hosts[mode], mode) for mode in both}
    for lines, mode in ((2, "train"), (4, "explore"), (5, "train"), (6, "explore")):
        wait_for(folders["train"] / "metrics.jsonl", lines=lines, process=at_work["train"])
        at_work[mode].kill()
        at_work[mode] = start_role(hosts[mode], mode)
    for command in at_work.values():
        command.finish()
    is_the_same(folders, reference)


def pair(values, tmp_path: Path, **changes) -> dict:
    section = {"type": "checkpoint", "folder": str(tmp_path / "shared")}
    return values(synchronizer=section, **{"data__eval": [], **changes})


def registered_trainer(run) -> object:
    """Register a trainer, as seen by an explorer."""
    section = run.synchronizer
    return registered_peer(
        Path(section.folder),
        "trainer",
        shared_settings(run, load_tasks(run, load_run_tokenizer(run)).train.fingerprint),
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"trainer__tasks_per_step": 4}, ["trainer.tasks_per_step is 4 here and 8 there"]),
        ({"trainer__duration": "6 steps"}, ["trainer.duration is 6 steps here and 4 steps there"]),
        ({"algorithm": {"type": "rloo", "rollouts_per_task": 4}}, ["algorithm.type is rloo here"]),
        ({"seed": 2, "name": "b"}, ["seed is 2 here", "buffer.name is strop/b here and strop/small there"]),
        ({"data__train__limit_tasks": 50}, ["data.train is 50 tasks with rows"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_explorer_and_trainer_of_two_runs_are_refused_at_the_start(values, tmp_path, changes, names):
    trainer = strop.load(pair(values, tmp_path), ["mode=train"]).run
    explorer = strop.load(pair(values, tmp_path, **changes), ["mode=explore"])
    with registered_trainer(trainer), pytest.raises(RunFolderError) as caught:
        explore(explorer)
    message = str(caught.value)
    assert all(name in message for name in names), message
    assert message.startswith("This explorer and the trainer registered in ") and "\n" not in message
    assert not (tmp_path / "shared" / "explorer.json").exists()


def test_a_second_run_in_the_folder_of_another_is_refused(values, tmp_path):
    trainer = strop.load(pair(values, tmp_path), ["mode=train"])
    other = strop.load(pair(values, tmp_path, name="other", seed=2), ["mode=train"])
    with registered_trainer(trainer.run):
        with pytest.raises(RunFolderError, match=r"This trainer and the trainer registered in .* seed is 2"):
            train(other)
        assert (tmp_path / "shared" / "trainer.json").exists()


def test_a_model_of_the_same_shape_with_other_weights_is_refused(values, tiny, tmp_path):
    shutil.copytree(tiny / "model", tmp_path / "other")
    weights = tmp_path / "other" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    trainer = strop.load(pair(values, tmp_path), ["mode=train"]).run
    explorer = strop.load(pair(values, tmp_path, model__path=str(tmp_path / "other")), ["mode=explore"])
    with (
        registered_trainer(trainer),
        pytest.raises(RunFolderError, match=r"model\.path is contents \w{12} here and cont"),
    ):
        explore(explorer)


def test_a_new_run_ignores_weights_of_an_older_run_in_its_folder(values, tmp_path):
    shared = tmp_path / "shared"
    versions = FolderVersionStore(shared)
    versions.write(3, [])
    alone = pair(values, tmp_path, synchronizer__style="latest", buffer="file", trainer__duration="1 steps")
    assert explore(strop.load(alone, ["mode=explore"])).step == 1
    assert versions.versions() == []
