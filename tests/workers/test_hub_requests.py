"""A hub that accepts connections and never answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from strop.config.peft_adapter import adapter_folder
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.formats.gguf import pretrained_source
from strop.models.loading import load_config, load_model, load_tokenizer
from strop.models.meta_loading import local_folder
from strop.models.tiny import make_model
from strop.run.entry.export import push_to_hub
from strop.workers import hub_requests


@pytest.fixture
def _silent_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
        monkeypatch.setattr(hub_requests, "CHANGE_TIMEOUT_SECONDS", 0.2)
        monkeypatch.setattr(hub_requests, "ANSWER_SECONDS", 0.2)
        hub_requests.hub_fault.cache_clear()
        huggingface_hub.close_session()
        yield
        huggingface_hub.close_session()
        hub_requests.hub_fault.cache_clear()


@pytest.mark.usefixtures("_silent_hub")
@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (
            lambda: load_config(ModelConfig(path="org/name")),
            r"cannot be reached \(",
        ),
        (lambda: adapter_folder("org/name"), "the Hub gave no adapter of this name"),
        (lambda: local_folder("org/name"), "no model could be loaded from org/name"),
        (
            lambda: push_to_hub(Path("x"), "org/name", private=True),
            "x could not be uploaded as org/name: timed out",
        ),
    ],
    ids=["model", "adapter", "weights", "upload"],
)
def test_a_silent_hub_is_one_paragraph(ask: Callable[[], object], told: str) -> None:
    hub_requests.limit_hub_requests()
    with pytest.raises(ModelError, match=told) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_silent_hub")
def test_a_model_in_the_cache_is_read_from_there_alone_which_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub_requests.warn_of_cache.cache_clear()
    snapshot = tmp_path / "cache" / "models--org--name" / "snapshots" / ("a" * 40)
    assert pretrained_source("org/name") == {"pretrained_model_name_or_path": "org/name"}
    make_model(snapshot, ["one two"], vocab_size=260)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    section = ModelConfig(path="org/name")
    assert load_tokenizer(section).encode("one")
    assert load_model(section, device="cpu").config.model_type == "qwen2"
    (said,) = (record.message for record in caplog.records if record.name == "strop.hub")
    assert "cannot be reached" in said and said.endswith("org/name is read from this machine's cache.")


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [("GET", None, 10), ("HEAD", 3.0, 3), ("POST", None, 60), ("PUT", 3.0, 3)],
)
def test_a_limit_of_the_request_is_kept(
    monkeypatch: pytest.MonkeyPatch, method: str, given: float | None, expected: float
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    hub_requests.limit_hub_requests()
    client = huggingface_hub.get_session()
    (*_, limit) = client.event_hooks["request"]
    request = client.build_request(method, "http://localhost", timeout=given)
    limit(request)
    assert request.extensions["timeout"] == dict.fromkeys(("connect", "read", "write", "pool"), expected)
