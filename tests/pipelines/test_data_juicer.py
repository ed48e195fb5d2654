"""The client of the Data-Juicer service, with a server that answers like Trinity's."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pyarrow as pa
import pytest

from strop.config.schema.buffer import DataJuicerConfig
from strop.config.schema.task_pipeline import DataJuicerTasksConfig
from strop.errors import ConfigError, RolloutError
from strop.pipelines.juicer.client import PYTHON, ServiceProcess
from strop.pipelines.juicer.operators import DataJuicer, DataJuicerTasks
from strop.pipelines.juicer.service import EFFECTS, TOKEN
from strop.pipelines.tasks.operator import ROW_ID, Parts, Removal, write_part
from tests.pipelines.test_experience_pipeline import group


class Service(BaseHTTPRequestHandler):
    """Scores a response by its length, and drops rows with a reward of 0. `fail` as a config fails a request."""

    config: ClassVar[dict[str, object]] = {}
    lost: ClassVar[bool] = False
    """Whether the session has been lost, which a config `lose` causes once."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/create":
            type(self).config = json.loads(body)
            answer = b"<html></html>" if self.config["config_path"] == "other" else b'{"session_id": "s1"}'
            self._answer(answer, 400 if self.config["config_path"] == "bad" else 200)
            return
        if self.path.startswith("/process_rows"):
            self._answer(_without_odd_rows(body))
            return
        if self.config["config_path"] == "lose" and not self.lost:
            type(self).lost = True
            self._answer(b'{"error": "there is no such session"}', 409)
            return
        found = re.search(rb"octet-stream\r\n\r\n(.*)\r\n--", body, re.DOTALL)
        assert found is not None and b'name="session_id"\r\n\r\ns1\r\n' in body
        if self.config["config_path"] == "fail":
            self._answer(b"no such operator", 500)
            return
        if self.config["config_path"] == "no arrow":
            self._answer(b"{}")
            return
        with pa.ipc.open_stream(found[1]) as reader:
            rows = [row for row in reader.read_all().to_pylist() if row["reward"] > 0]
        for row in rows:
            row["__dj__stats__"] = {"length": len(row["prompt_text"]) + len(row["response_text"])}
        table = pa.Table.from_pylist(rows, schema=None if rows else pa.schema([("index", pa.int64())]))
        self._answer(_stream(table))

    def _answer(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


def _without_odd_rows(body: bytes) -> bytes:
    """The even rows, with a statistic, and the effects as the service writes them."""
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    table = table.take(list(range(0, table.num_rows, 2)))
    table = table.append_column("__dj__stats__", pa.array([{"size": 2.0}] * table.num_rows))
    effects = [{"name": "even_filter", "rows_in": 3, "rows_out": 2, "removed": [1]}]
    table = table.replace_schema_metadata({EFFECTS: json.dumps(effects)})
    return _stream(table)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def url():
    server = HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_statistics_become_info_and_filtered_rows_are_removed(url):
    operators = ({"text_length_filter": {"min_len": 1}},)
    client = DataJuicer(DataJuicerConfig(url=url, operators=operators, processes=2))
    config = {"operators": list(operators), "config_path": None, "np": 2, "pipeline_type": "experience"}
    assert Service.config == config
    found = client(group(1.0, 0.0, None, 0.5))
    assert found is not None
    # "2 + 2" and "4"
    assert [(rollout.index, rollout.info) for rollout in found.rollouts] == [
        (0, {"length": 6}),
        (3, {"length": 6}),
    ]
    assert client(group(0.0)) is None
    assert client(group(None)) is None


def test_rows_of_a_dataset(url, tmp_path):
    write_part(tmp_path / "rows.arrow", pa.table({"text": ["a", "b", "c"], ROW_ID: [7, 8, 9]}))
    section = DataJuicerTasksConfig(url=url, operators=({"even_filter": {}},))
    (result,) = DataJuicerTasks(section)(Parts((tmp_path / "rows.arrow",)))
    assert result.table.to_pydict() == {"text": ["a", "c"], ROW_ID: [7, 9], "size": [2.0, 2.0]}
    assert result.parents.tolist() == [0, 2]
    assert result.removals == [Removal(1, "even_filter")]
    assert result.scores["size"].tolist() == [2.0, 2.0]
    assert result.counts == {"even_filter kept": 2}


def test_a_lost_session_is_created_again(url):
    Service.lost = False
    found = DataJuicer(DataJuicerConfig(url=url, config="lose"))(group(1.0))
    assert found is not None and Service.lost


def test_a_service_at_a_url_that_ends_and_comes_back(monkeypatch):
    """The new service, which starts while the client waits, knows no session, so the client creates one."""
    servers: list[HTTPServer] = []

    def start() -> None:
        servers.append(HTTPServer(held.getsockname(), Service))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()

    def end() -> None:
        servers[-1].shutdown()
        servers.pop().server_close()

    with socket.socket() as held:  # It keeps the port for the servers, but does not listen.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        start()
        client = DataJuicer(DataJuicerConfig(url=url, config="x", wait_seconds=60))
        end()
        Service.config = {}
        monkeypatch.setattr("strop.pipelines.juicer.client.time.sleep", lambda seconds: servers or start())
        found = client(group(1.0, 0.0))
        assert found is not None and len(found.rollouts) == 1 and Service.config["config_path"] == "x"
        client = DataJuicer(DataJuicerConfig(url=url, config="x", wait_seconds=0.01))
        end()
        monkeypatch.undo()
        with pytest.raises(RolloutError, match="it did not come back in 0 s"):
            client(group(1.0))


def test_a_refused_token(monkeypatch):
    service = ServiceProcess(sys.executable, 0)
    try:
        for token in ({TOKEN: "another"}, {}):
            monkeypatch.delenv(TOKEN, raising=False)
            for name, value in token.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(ConfigError, match=r"failed: 401 .*token"):
                DataJuicer(DataJuicerConfig(url=service.url, config="x"))
    finally:
        service.close()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "write python, the interpreter"),
        ({"python": "/no/python"}, "there is no interpreter /no/python"),
        ({"url": "http://127.0.0.1:1"}, "Start the service"),
    ],
)
def test_a_service_that_cannot_be_reached(monkeypatch, section, message):
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ConfigError, match=message):
        DataJuicer(DataJuicerConfig(config="x", **section))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ("bad", ConfigError, r"failed: 400.*Start the service"),
        ("other", ConfigError, r"answers b'<html></html>'.*Start the service"),
        ("fail", RolloutError, "failed: 500 no such operator"),
        ("no arrow", RolloutError, r"failed: it answers b'\{\}'"),
    ],
)
def test_a_service_that_fails(url, config, error, message):
    with pytest.raises(error, match=message):
        DataJuicer(DataJuicerConfig(url=url, config=config))(group(1.0))
