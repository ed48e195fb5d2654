"""HTTP service that runs Data-Juicer's operators. Needs py-data-juicer and the standard library, and not Strop.

    STROP_DATA_JUICER_TOKEN=secret python service.py --port 5005

It listens on the loopback interface and prints its port as a line of JSON. Every request needs the token. The paths are
those of Trinity-RFT's service (`/health`, `/create`, `/process_experience`, `/close`), and `/process_rows` for datasets
of any size. Rows travel as Arrow streams; a row's column `__strop_index__` says in the answer which row it comes from.
With --owned the service ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import hmac
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

TOKEN = "STROP_DATA_JUICER_TOKEN"
INDEX = "__strop_index__"
_STATS = "__dj__stats__"
"""Column in which Data-Juicer's operators write their statistics."""
EFFECTS = b"strop_effects"
"""Key of the metadata of an answer's schema with the rows in and out of each operator, and the rows it removed."""
_RECIPE_KEYS = ("process", "text_keys", "np")
_WITHOUT_EFFECT = ("project_name", "dataset_path", "export_path")
"""Keys of a recipe that say where rows come from and go to, which a request does."""
_MAX_RECIPE_BYTES = 200_000
_MAX_RECIPE_DEPTH = 50
"""Limits of a recipe, those of Strop's own YAML files."""
_MAX_REQUEST_BYTES = 1_000_000
"""Maximum size of a request that has no rows."""
_BATCH_ROWS = 1000
HEADER_SECONDS = 10.0
"""Timeout for the headers of the first request, with the token, after a connection was opened."""
MAX_STRANGERS = 64
"""Maximum number of connections without a request that has the token; one more closes the oldest."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_SECONDS = 0.1
_WARNING_SECONDS = 60.0
"""Shortest time between two warnings about connections that cannot be accepted."""


class RequestError(Exception):
    """A request that cannot be fulfilled, with the reason for the client."""


class Session:
    """Operators of one client, in order."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Raises RequestError for unknown operators and arguments."""
        processes = _count(request.get("np") or 1)
        text_key: str | None = None
        operators = request.get("operators") or []
        if request.get("config_path"):
            recipe = _read_recipe(Path(str(request["config_path"])))
            operators = recipe["process"]
            processes = _count(recipe.get("np") or processes)
            keys = recipe.get("text_keys")
            text_key = keys[0] if isinstance(keys, list) and keys else keys or None
        if not isinstance(operators, list) or not operators:
            raise RequestError("there are no operators")
        self._operators = [_make(operator, text_key, processes) for operator in operators]
        self._lock = threading.Lock()

    def process(self, source: Path, target: Path) -> None:
        """Run the operators on the rows of a file. Raises RequestError for an operator that fails."""
        import datasets
        import pyarrow as pa

        try:
            with pa.memory_map(str(source)) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
        except (OSError, pa.ArrowException) as error:
            raise RequestError(f"the rows are no Arrow stream: {error}") from None
        rows = importlib.import_module("data_juicer.core.data").NestedDataset(datasets.Dataset(table))
        with self._lock:
            effects = []
            for name, operator in self._operators:
                rows, effect = _apply(name, operator, rows)
                effects.append(effect)
            _write(rows, effects, target)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"np is {value!r:.80}; write a number of processes")
    return value


def _read_recipe(file: Path) -> dict[str, Any]:
    yaml = importlib.import_module("yaml")
    try:
        if not file.is_file():
            raise ValueError("it is not a regular file")
        with file.open("rb") as content:
            text = content.read(_MAX_RECIPE_BYTES + 1)
        if len(text) > _MAX_RECIPE_BYTES:
            raise ValueError(f"it is larger than {_MAX_RECIPE_BYTES:,} bytes")
        depth = 0
        for event in yaml.parse(text.decode("utf-8"), yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_RECIPE_DEPTH:
                raise ValueError(f"it nests more than {_MAX_RECIPE_DEPTH} mappings or lists")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"it has the alias *{event.anchor}; write the values there")
        recipe = yaml.safe_load(text)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise RequestError(f"the recipe {file} cannot be read: {error}") from None
    if not isinstance(recipe, dict) or not isinstance(recipe.get("process"), list):
        raise RequestError(f"the recipe {file} has no list `process` of operators")
    if unknown := [key for key in recipe if key not in (*_RECIPE_KEYS, *_WITHOUT_EFFECT)]:
        raise RequestError(
            f"the recipe {file} has {', '.join(unknown)}, which this service does not apply; it applies "
            f"{', '.join(_RECIPE_KEYS)}"
        )
    return recipe


def _make(written: Any, text_key: str | None, processes: int) -> tuple[str, Any]:
    if not isinstance(written, dict) or len(written) != 1:
        raise RequestError(f"{written!r} is no operator; write a mapping from its name to its arguments")
    (name, arguments), *_ = written.items()
    known = importlib.import_module("data_juicer.ops").OPERATORS.modules
    if name not in known:
        close = difflib.get_close_matches(str(name), known, 1, 0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RequestError(f"Data-Juicer has no operator {name!r}{hint}")
    defaults: dict[str, Any] = {"num_proc": processes}
    if text_key is not None:
        defaults["text_key"] = text_key
    try:
        return name, known[name](**{**defaults, **(arguments or {})})
    except (Exception, SystemExit) as error:  # noqa: BLE001  (of Data-Juicer and its libraries)
        raise RequestError(f"operator {name} cannot be made: {_describe(error)}") from None


def _apply(name: str, operator: Any, rows: Any) -> tuple[Any, dict[str, Any]]:
    before = rows[INDEX] if INDEX in rows.column_names else []
    count = len(rows)
    if count:
        try:
            rows = operator.run(rows)
        except (Exception, SystemExit) as error:  # of Data-Juicer and its libraries
            raise RequestError(
                f"operator {name} failed: {_describe(error)}. The rows have the columns {', '.join(rows.column_names)}"
            ) from error
    after = {*rows[INDEX]} if INDEX in rows.column_names else set()
    removed = [int(each) for each in dict.fromkeys(before) if each not in after]
    return rows, {"name": name, "rows_in": count, "rows_out": len(rows), "removed": removed}


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _write(rows: Any, effects: list[dict[str, Any]], target: Path) -> None:
    import pyarrow as pa

    fields = rows.features.arrow_schema
    stats = None
    if _STATS in rows.column_names:  # datasets keeps it as JSON text
        stats = pa.array(list(rows[_STATS]))
        fields = fields.set(fields.get_field_index(_STATS), pa.field(_STATS, stats.type))
    schema = fields.with_metadata({EFFECTS: json.dumps(effects)})
    first = 0
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for table in rows.with_format("arrow").iter(_BATCH_ROWS):
            if stats is not None:
                index = table.schema.get_field_index(_STATS)
                table = table.set_column(index, _STATS, stats.slice(first, table.num_rows))
            first += table.num_rows
            writer.write_table(table.cast(schema))


def _read_object(body: Path) -> dict[str, Any]:
    try:
        if body.stat().st_size > _MAX_REQUEST_BYTES:
            raise ValueError(f"it is larger than {_MAX_REQUEST_BYTES:,} bytes")
        value = json.loads(body.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError("the request is not a JSON object")
    return value


class Server(ThreadingHTTPServer):
    """A thread for each connection. Connections that bring no request with the token are few, and closed after a time:
    every user of the machine can connect."""

    request_queue_size = 128

    def __init__(self, port: int) -> None:
        self._strangers: dict[Any, float] = {}
        """Connections without a request that has the token, and when they are closed; oldest first."""
        self._lock = threading.Lock()
        self._next_warning = 0.0
        super().__init__(("127.0.0.1", port), Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Where the table of files is full, the oldest stranger makes place for a later try."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_RESOURCES:
                if time.monotonic() >= self._next_warning:
                    self._next_warning = time.monotonic() + _WARNING_SECONDS
                    print(f"A connection cannot be accepted: {error.strerror}.", file=sys.stderr, flush=True)
                self._close_strangers(1)
                time.sleep(_RETRY_SECONDS)
            raise  # the loop of the server tries again

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own."""
        with self._lock:
            self._strangers[request] = time.monotonic() + HEADER_SECONDS
            surplus = len(self._strangers) - MAX_STRANGERS
        self._close_strangers(surplus)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close the strangers whose time is over; the server calls this twice a second."""
        with self._lock:
            late = sum(until < time.monotonic() for until in self._strangers.values())
        self._close_strangers(late)

    def admit(self, request: Any) -> None:
        """A connection has brought the token, or has ended."""
        with self._lock:
            self._strangers.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self.admit(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error of the service; that a client has gone is none."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _close_strangers(self, count: int) -> None:
        with self._lock:
            oldest = [*self._strangers][: max(0, count)]
            for request in oldest:
                del self._strangers[request]
                with contextlib.suppress(OSError):  # it may have closed itself
                    request.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it


class Handler(BaseHTTPRequestHandler):
    """Requests of one connection."""

    sessions: ClassVar[dict[str, Session]] = {}
    token: ClassVar[str] = ""
    protocol_version = "HTTP/1.1"
    timeout = 600.0
    """Seconds for which a client may neither send nor receive."""

    def do_GET(self) -> None:
        """The state of the service."""
        if self._is_allowed():
            known = self.path == "/health"
            self._answer_json(
                200 if known else 404, {"status": "healthy"} if known else {"error": "no such path"}
            )

    def do_POST(self) -> None:
        """A request with a body."""
        if not self._is_allowed():
            return
        with tempfile.TemporaryDirectory(prefix="strop-juicer-") as folder:
            try:
                self._post(Path(folder))
            except RequestError as error:
                self._answer_json(400, {"error": str(error)})

    def _post(self, folder: Path) -> None:
        path, _, session = self.path.partition("?session=")
        body, answer = folder / "body", folder / "answer"
        self._receive(body)
        if path == "/create":
            created = uuid.uuid4().hex
            self.sessions[created] = Session(_read_object(body))
            self._answer_json(200, {"session_id": created})
            return
        if path == "/close":
            self.sessions.pop(str(_read_object(body).get("session_id")), None)
            self._answer_json(200, {})
            return
        if path == "/process_experience":
            session = self._read_form(body)
        elif path != "/process_rows":
            self._answer_json(404, {"error": f"there is no path {path}"})
            return
        if session not in self.sessions:
            self._answer_json(409, {"error": "there is no such session; create one"})
            return
        self.sessions[session].process(body, answer)
        self.send_response(200)
        self.send_header("Content-Length", str(answer.stat().st_size))
        self.end_headers()
        with answer.open("rb") as file:
            shutil.copyfileobj(file, self.wfile)

    def _receive(self, body: Path) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not (length.isascii() and length.isdecimal()):
            self.close_connection = True
            raise RequestError("Content-Length is no number of bytes")
        left = int(length)
        with body.open("wb") as file:
            while left and (block := self.rfile.read(min(left, 2**20))):
                left -= len(block)
                file.write(block)
        if left:
            raise RequestError("the body is incomplete")

    def _read_form(self, body: Path) -> str:
        """The session's id; the file becomes the rows of the form."""
        boundary = b"--" + self.headers.get_boundary("").encode() if self.headers.get_boundary() else b"--"
        fields = {}
        for part in body.read_bytes().split(boundary):
            head, found, content = part.partition(b"\r\n\r\n")
            for name in (b"session_id", b"arrow_data"):
                if found and b'name="' + name + b'"' in head:
                    fields[name] = content.removesuffix(b"\r\n")
        if len(fields) != 2:
            raise RequestError("the form needs session_id and arrow_data")
        body.write_bytes(fields[b"arrow_data"])
        return fields[b"session_id"].decode()

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            self.server.admit(self.connection)  # type: ignore[attr-defined]
            return True
        self.close_connection = True
        self._answer_json(401, {"error": f"the token is missing or wrong; it is the service's {TOKEN}"})
        return False

    def _answer_json(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """No line per request."""


def _end_with_input() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock the processes that Data-Juicer forks would wait for
        pass
    os.killpg(0, signal.SIGKILL)  # with the processes of the operators


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Runs Data-Juicer's operators for Strop.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 for a free one")
    parser.add_argument("--owned", action="store_true", help="end when standard input is closed")
    arguments = parser.parse_args()
    Handler.token = os.environ.get(TOKEN, "")
    if not Handler.token:
        sys.exit(f"Set the environment variable {TOKEN} to a token that requests must have.")
    if arguments.owned:
        threading.Thread(target=_end_with_input, daemon=True).start()
    server = Server(arguments.port)
    print(json.dumps({"port": server.server_port}), flush=True)
    os.dup2(2, 1)  # what Data-Juicer prints goes to the log
    server.serve_forever()


if __name__ == "__main__":
    main()
