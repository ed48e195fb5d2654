"""Tools of MCP servers, called by the workflow `tools`: the file of servers, and real servers of the package mcp."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from strop.compat.verl.interface.tool_files import check_classes, read_mcp_entry
from strop.compat.verl.interface.tools import MCPBaseTool, MCPSearchTool, OpenAIFunctionToolSchema
from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError, MissingExtraError
from strop.workflows.mcp import stdio_filter
from strop.workflows.mcp.client import (
    EndlessAnswerError,
    McpClient,
    McpTool,
    RateLimit,
    bounded_result,
    list_tools,
    listed_tools,
)
from strop.workflows.mcp.servers import McpServer, read_servers
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import call
from tests.workflows.hostile_mcp import (
    EVENTS,
    HEAD,
    JSON,
    PING,
    hostile_server,
    never,
    next_page,
    next_page_as_event,
    sends,
)

SERVER = Path(__file__).parent / "mcp_calculator.py"
STDIO = {"command": sys.executable, "args": [str(SERVER)]}
LOUD = """
from verl.tools.mcp_base_tool import MCPBaseTool

class Loud(MCPBaseTool):
    def _parse_tool_result(self, content):
        text, metrics = super()._parse_tool_result(content)
        return text.upper(), metrics
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """Writes a file of servers and a tool file with one entry; returns the tool file and the entry."""
    monkeypatch.setattr("strop.workflows.mcp.client.find_spec", lambda name: name)

    def write(servers, class_name="verl.tools.mcp_base_tool.MCPBaseTool", selected=None, **config):
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        section = {"mcp_servers_config_path": str(tmp_path / "servers.json"), "tool_selected_list": selected}
        made = {"class_name": class_name, "config": {"type": "mcp", **config}, "mcp": section}
        (tmp_path / "tools.yaml").write_text(yaml.safe_dump({"tools": [made]}))
        return str(tmp_path / "tools.yaml"), made

    return write


def test_transports_and_prefixes_are_those_of_verl(entry):
    servers = {
        "calc": {"command": "python", "args": ["server.py", 1], "env": {"N": 2}},
        "old": {"url": "https://host/sse"},
        "new": {"url": "https://host/mcp", "headers": {"X": "1"}, "auth": "key"},
        "token": {"url": "https://host/mcp", "auth_token": "secret"},
        "chosen": {"url": "https://host/sse", "transport": "streamable-http"},
    }
    _, made = entry(servers)
    read = {server.name: server for server in read_mcp_entry(made, "here").servers}
    assert {name: server.transport for name, server in read.items()} == {
        "calc": "stdio",
        "old": "sse",
        "new": "http",
        "token": "sse",
        "chosen": "http",
    }
    assert (read["calc"].args, read["calc"].env) == (("server.py", "1"), {"N": "2"})
    assert read["new"].headers == {"X": "1", "Authorization": "Bearer key"}
    assert read["token"].headers == {"Authorization": "Bearer secret"} and "secret" not in str(read["token"])
    assert [server.prefix for server in read.values()] == ["calc_", "old_", "new_", "", "chosen_"]
    _, alone = entry({"calc": STDIO})
    assert read_mcp_entry(alone, "here").servers[0].prefix == ""


@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ({}, "has no servers"),
        ({"a": {"args": []}}, "needs either `command`"),
        ({"a": {"command": "x", "url": "y"}}, "needs either `command`"),
        ({"a": {"command": "x", "arg": []}}, "unknown key 'arg'; did you mean 'args'"),
        ({"a": {"command": "x", "args": "y"}}, "args: must be a valid list, got 'y'"),
        ({"a": {"url": "x", "transport": ["http"]}}, "transport: expected a string"),
        ({"a": {"command": "x", "cwd": {}}}, "cwd: expected a string"),
        ({"a": {"command": "x", "transport": "http"}}, "its transport is stdio"),
        ({"a": {"url": "x", "type": "stdio"}}, "its transport is http or sse"),
        ({"a": {"url": "x", "transport": "carrier pigeon"}}, "write stdio, sse or http"),
        ({"a": {"url": "x", "auth": "oauth"}}, "asks a person to log in"),
    ],
)
def test_wrong_files_of_servers(entry, servers, told):
    file, made = entry(servers)
    with pytest.raises(ConfigError, match=told):
        read_servers(made["mcp"]["mcp_servers_config_path"], "here")
    with pytest.raises(ConfigError, match=told) as raised:
        check_classes(file, None)
    assert file in str(raised.value)


def test_a_file_of_servers_that_nests_without_end_is_refused(tmp_path):
    (tmp_path / "servers.json").write_text('{"mcpServers": ' + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not JSON"):
        read_servers(str(tmp_path / "servers.json"), "here")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mcp": {}}, "needs mcp.mcp_servers_config_path"),
        ({"mcp": {"mcp_servers_config_path": "none.json"}}, "none.json cannot be read"),
        ({"mcp": {"mcp_servers_config_path": "x", "retries": 3}}, "unknown key mcp.retries"),
        ({"mcp": {"mcp_servers_config_path": "x", "tool_selected_list": "add"}}, "write a list of names"),
        ({"tool_schema": {}}, "the server describes its tools"),
        ({"config": {"type": "mcp", "rate_limit": 0}}, "config.rate_limit is 0; write a number above 0"),
        ({"config": {"type": "mcp", "timeout": "30"}}, "config.timeout is '30'"),
    ],
)
def test_wrong_entries(entry, changes, told):
    _, made = entry({"calc": STDIO})
    with pytest.raises(ConfigError, match=told):
        read_mcp_entry({**made, **changes}, "here")


def test_a_missing_package_is_one_line(entry, monkeypatch):
    file, _ = entry({"calc": STDIO})
    monkeypatch.setattr("strop.workflows.mcp.client.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'strop\[mcp\]'"):
        check_classes(file, None)


def test_the_rate_limit_is_a_bucket_of_one_second():
    """Two calls per second: two at once, then one each half second; a pause fills the bucket with two."""
    limit = RateLimit(2.0)
    assert [limit.reserve(10.0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]
    assert limit.reserve(11.0) == 0.5
    assert [limit.reserve(100.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    slow = RateLimit(0.5)
    assert [slow.reserve(0.0) for _ in range(3)] == [0.0, 2.0, 4.0]


def text(value):
    return SimpleNamespace(type="text", text=value)


def test_results_become_text():
    schema = OpenAIFunctionToolSchema.model_validate(
        {"type": "function", "function": {"name": "f", "description": ""}}
    )
    image = SimpleNamespace(type="image", data="")
    assert MCPBaseTool({}, schema)._parse_tool_result([text("a"), image, text("b")]) == ("a b", {})
    found = "{'query': 'cats', 'results': [{'title': 'one'}, {'title': 'two'}]}"
    shown, metrics = MCPSearchTool({}, schema)._parse_tool_result([text(found), text("nothing")])
    assert shown == '[{"title": "one"}, {"title": "two"}]'
    assert metrics == {"queries": ["cats", ""], "query_count": 2, "total_results": 2}


@pytest.mark.slow
def test_a_rollout_calls_a_process_and_a_url(tool_world, entry, user_file):
    pytest.importorskip("mcp")
    http = subprocess.Popen([sys.executable, SERVER, "http"], stdout=subprocess.PIPE, text=True)
    try:
        assert http.stdout is not None
        url = f"http://127.0.0.1:{http.stdout.readline().strip()}/mcp"
        file, _ = entry(
            {"near": STDIO, "far": {"url": url}},
            f"{user_file(LOUD)}:Loud",
            selected=["near_add", "near_fail", "far_add"],
        )
        two = call("near_add", a=1, b=2) + call("far_add", a=3)
        engine = tool_world.says(two, call("near_fail") + call("far_fail"), "done")
        rollout = tool_world.run(engine, "tools", {"tool_config": file})
    finally:
        http.kill()
        http.wait()
    assert rollout.error is None
    near, far, fail, none = (m["content"] for m in rollout.response_messages if m["role"] == "tool")
    assert (near, far) == ("SUM 3", "SUM 3")
    assert fail == "ERROR EXECUTING TOOL FAIL" and "there is no tool 'far_fail'" in none
    prompt = tool_world.tokenizer.decode(engine.requests[0].prompt_ids)
    assert "Add two numbers." in prompt and "near_add" in prompt and "far_fail" not in prompt


@pytest.mark.slow
def test_a_server_that_logs_to_its_standard_output_is_understood(entry):
    pytest.importorskip("mcp")
    noise = "import os, runpy; os.write(1, bytes(range(256)) * 9); "
    script = f"{noise} runpy.run_path({str(SERVER)!r}, run_name='__main__')"
    file, made = entry({"calc": {"command": sys.executable, "args": ["-c", script]}})
    tools = list_tools(read_mcp_entry(made, "here").servers, file)
    assert [tool.name for tool in tools] == ["add", "fail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "selected", "told"),
    [
        ({"gone": {"command": "nonesuch"}}, None, r"'gone' \(nonesuch\) does not answer: FileNotFoundError"),
        ({"ends": {"command": sys.executable, "args": ["-c", "pass"]}}, None, "does not answer: MCPError"),
        ({"calc": STDIO}, ["ad"], "'ad', which no server has; did you mean 'add'. Their tools are add, fail"),
    ],
)
def test_faults_of_real_servers(entry, servers, selected, told):
    pytest.importorskip("mcp")
    file, _ = entry(servers, selected=selected)
    with pytest.raises(ConfigError, match=told):
        load_workflow(WorkflowConfig(name="tools", args={"tool_config": file}))


MESSAGE = b'{"jsonrpc": "2.0", "id": 1, "result": {"text": "\xc3\xa9"}}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"Starting the server ...\n",
        b"\xff\xfe\x80\x1b[2J\r\n",
        b'{"level": "info", "msg": "started"}\n',
        b'{"jsonrpc": "2.0"}\n',
        b'["jsonrpc", "2.0"]\n',
        b"[" * 100_000 + b"\n",
        b"9" * 5000 + b"\n",
        b"\0\n",
        MESSAGE[:-5] + b"\n",
        b'{"jsonrpc": "2.0", "id": 1, "result": {"text": "\\ud800"}}\n',
    ],
)
def test_a_line_that_is_no_message_is_left_out_and_named_a_few_times(line, capsys):
    passed = io.BytesIO()
    stdio_filter.pass_messages(io.BytesIO(line * 5 + MESSAGE + b"\n" + MESSAGE[:-1]), passed, "calc")
    assert passed.getvalue() == MESSAGE * 2
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 3 and notes[2].endswith("Further ones are not named.")
    assert all(note.startswith("note: the MCP server calc wrote a line") and note.isascii() for note in notes)
    assert max(map(len, notes)) < 600 and not any(map("\x1b".__contains__, notes))


def test_notifications_are_left_out_and_requests_have_a_limit(capsys):
    notification = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n'
    request = b'{"jsonrpc": "2.0", "id": "s", "method": "ping"}\n'
    passed = io.BytesIO()
    some = (notification * 2000 + request * 600 + MESSAGE) * 2
    stdio_filter.pass_messages(io.BytesIO(some), passed, "calc")
    assert passed.getvalue() == (request * 600 + MESSAGE) * 2
    with pytest.raises(ValueError, match="1,001 requests without an answer in between"):
        stdio_filter.pass_messages(io.BytesIO(request * 1001), passed, "calc")
    assert capsys.readouterr().err == ""


ENDLESS_LIST = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    version = asked.get("params", {}).get("protocolVersion")
    started = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
    tools = {"tools": [], "nextCursor": "more"}
    if "id" in asked:
        result = started if asked["method"] == "initialize" else tools
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ENDLESS_LIST, "lists its tools on more than 100 pages. Ask a server with fewer tools"),
        (
            ENDLESS_LIST.replace('"capabilities"', '"x"'),
            "does not answer: ValidationError: .* Field required",
        ),
        ("import time; time.sleep(1000)", "does not answer within 1 s of its start"),
    ],
    ids=["endless", "malformed", "silent"],
)
def test_hostile_real_servers(monkeypatch, code, told):
    pytest.importorskip("mcp")
    monkeypatch.setattr("strop.workflows.mcp.client._START_SECONDS", 1.0 if "sleep" in code else 60.0)
    server = McpServer("hostile", "stdio", sys.executable, ("-c", code))
    with pytest.raises(ConfigError, match=told) as raised:
        list_tools([server], "here")
    assert "\n" not in str(raised.value)


CHUNKED, CHUNK = b"Transfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"x" * 1024 + b"\r\n"
HOSTILE_ANSWERS = {
    "endless pages": ("http", {"tools_list": next_page}, "lists its tools on more than 100 pages"),
    "endless events": (
        "http",
        {"tools_list": sends(EVENTS, PING)},
        "more than 30 lines of events without a result",
    ),
    "endless comments": ("http", {"tools_list": sends(EVENTS, b":\r\n")}, "more than 30 lines of events"),
    "endless event": (
        "http",
        {"tools_list": sends(EVENTS + b"data: ", b"x" * 9999)},
        "more than 90,000 bytes",
    ),
    "endless body": ("http", {"tools_list": sends(JSON + CHUNKED, CHUNK)}, "more than 90,000 bytes"),
    "compressed": (
        "http",
        {"tools_list": sends(JSON + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 9_000_000))},
        "sends a compressed response",
    ),
    "slow body": (
        "http",
        {"tools_list": sends(JSON + CHUNKED, b"1\r\nx\r\n", 0.01)},
        "does not answer within",
    ),
    "slow header": ("http", {"tools_list": sends(HEAD + b"X: ", b"x", 0.01)}, "does not answer within"),
    "silent": ("http", {"tools_list": never}, "does not answer within"),
    "silent to the end": ("http", {"tools_list": never, "DELETE": never}, "does not answer within"),
    "no handshake": ("http", {"initialize": never}, "does not answer within"),
    "wrong type": (
        "http",
        {"tools_list": sends(HEAD + b"Content-Type: \x1b]0;x\r\n\r\n")},
        "Unexpected content type",
    ),
    "no JSON": ("http", {"tools_list": sends(JSON + b"\r\n" + b"[" * 5000)}, "Failed to parse JSON response"),
    "ends early": ("http", {"tools_list": sends(EVENTS + PING)}, "SSE stream ended without a response"),
    "resumes": (
        "http",
        {"tools_list": sends(EVENTS + b"id: 1\nretry: 0\n\n"), "GET": sends(EVENTS + b"id: 1\n\n")},
        "more than 30 lines",
    ),
    "SSE, endless pages": (
        "sse",
        {"tools_list": next_page_as_event},
        "lists its tools on more than 100 pages",
    ),
    "SSE, endless events": (
        "sse",
        {"tools_list": sends(b"", PING)},
        "more than 30 lines of events without a result",
    ),
    "SSE, endless start": ("sse", {"GET": sends(EVENTS, PING)}, "does not answer within|more than 30 lines"),
    "SSE, silent": ("sse", {"tools_list": never}, "does not answer within"),
    "SSE, wrong type": (
        "sse",
        {"GET": sends(HEAD + b"Content-Type: text/html\r\n\r\n<p>")},
        "text/event-stream",
    ),
    "SSE, another host": (
        "sse",
        {"GET": sends(EVENTS + b"event: endpoint\ndata: http://localhost:1/x\n\n")},
        "does not answer within",
    ),
}


@pytest.mark.parametrize(("transport", "answers", "told"), HOSTILE_ANSWERS.values(), ids=HOSTILE_ANSWERS)
def test_hostile_servers_over_http(monkeypatch, caplog, transport, answers, told):
    """Each ends within limits of pages, bytes and seconds, and with one line."""
    pytest.importorskip("mcp")
    seconds = 0.5 if "within" in told else 60.0
    changed = {"START_SECONDS": seconds, "LIST_SECONDS": seconds, "CLOSE_SECONDS": 0.2, "MAX_BYTES": 90_000}
    for name, value in (changed | {"MAX_LINES": 400 if "pages" in told else 30}).items():
        monkeypatch.setattr(f"strop.workflows.mcp.client._{name}", value)
    with hostile_server(**answers) as server, pytest.raises(ConfigError, match=told) as raised:
        list_tools(
            [McpServer("hostile", transport, url=f"{server.url}/{transport.replace('http', 'mcp')}")], "here"
        )
    assert "\n" not in str(raised.value)
    assert len(caplog.records) <= 3 and not any(record.exc_info for record in caplog.records)


def test_a_redirect_to_another_host_is_not_followed():
    pytest.importorskip("mcp")
    with hostile_server() as other:
        moved = HEAD.replace(b"200 OK", b"307 Moved") + f"Location: {other.url}/mcp\r\n\r\n".encode()
        for transport, place in (("http", "mcp"), ("sse", "sse")):
            with hostile_server(tools_list=sends(moved), GET=sends(moved)) as server:
                made = McpServer("moved", transport, url=f"{server.url}/{place}", headers={"X-Key": "secret"})
                with pytest.raises(ConfigError, match=r"[Rr]edirect"):
                    list_tools([made], "here")
        assert other.asked == []


def test_a_server_that_does_not_end_its_session_has_listed_its_tools(monkeypatch):
    pytest.importorskip("mcp")
    monkeypatch.setattr("strop.workflows.mcp.client._CLOSE_SECONDS", 0.2)
    with hostile_server(DELETE=never) as server:
        (tool,) = list_tools([McpServer("stays", "http", url=f"{server.url}/mcp")], "here")
        assert tool.name == "add" and server.asked[-1] == "DELETE"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (sends(EVENTS, PING), "more than 30 lines of events without a result"),
        (sends(JSON + CHUNKED, CHUNK), "more than 90,000 bytes"),
    ],
    ids=["events", "body"],
)
def test_a_session_of_a_hostile_server_ends_and_opens_again(monkeypatch, answer, told):
    pytest.importorskip("mcp")
    for name, value in {"CLOSE_SECONDS": 0.2, "MAX_BYTES": 90_000, "MAX_LINES": 30}.items():
        monkeypatch.setattr(f"strop.workflows.mcp.client._{name}", value)

    async def call_three_times(server):
        tool = McpTool(McpServer("x", "http", url=f"{server.url}/mcp"), "add", "", {})
        client = McpClient(1000.0)
        for _ in range(9):  # more than the limit of bytes and lines allows for one result
            await client.call(tool, {}, 60)
        server.answers["tools/call"] = answer
        with pytest.raises(EndlessAnswerError, match=told):
            await client.call(tool, {}, 60)
        del server.answers["tools/call"]
        return await client.call(tool, {}, 60)

    with hostile_server() as server:
        result = asyncio.run(call_three_times(server))
        assert result.content[0].text == "3" and server.asked.count("initialize") == 2


def test_a_line_without_end_ends_the_server():
    endless = "import os\nwhile True: os.write(1, b'x' * (1 << 20))"
    command = [sys.executable, "-I", stdio_filter.__file__, sys.executable, "-c", endless]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"The MCP server {sys.executable} has written more than 33,554,432 bytes")


class Pages:
    """A client whose server's list of tools has a number of pages, of one tool each."""

    def __init__(self, pages, description=""):
        self.pages, self.asked = pages, 0
        self.tool = SimpleNamespace(model_dump_json=lambda: description)

    async def list_tools(self, cursor):
        assert cursor == (str(self.asked) if self.asked else None)
        self.asked += 1
        return SimpleNamespace(
            tools=[self.tool], next_cursor=str(self.asked) if self.asked < self.pages else None
        )


def test_a_list_of_tools_has_a_limit_of_pages_and_of_characters():
    assert len(asyncio.run(listed_tools(Pages(3)))) == 3
    endless = Pages(10**9)
    with pytest.raises(EndlessAnswerError, match="on more than 100 pages"):
        asyncio.run(listed_tools(endless))
    assert endless.asked == 100
    with pytest.raises(EndlessAnswerError, match="in more than 4,000,000 characters"):
        asyncio.run(listed_tools(Pages(10**9, "x" * 2_000_001)))


def test_the_text_of_a_result_has_a_limit():
    image = SimpleNamespace(type="image")
    fits, too_long = (SimpleNamespace(content=[text("x" * size), image]) for size in (9, 4_000_001))
    assert bounded_result(fits) is fits
    with pytest.raises(EndlessAnswerError, match="4,000,001 characters"):
        bounded_result(too_long)
