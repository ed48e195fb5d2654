"""A process of vLLM's HTTP server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.free_port import find_free_port
from strop.inference.vllm.library import WORKER_EXTENSION
from strop.workers.waiting import wait_until

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


class VllmServerProcess:
    """A server of a model folder under the name `policy`, on one port for all its starts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = find_free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
            *("--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--block-size", "32"),
            *("--kv-cache-memory-bytes", str(2**26), "--generation-config", "vllm", "--enable-scale-out"),
            *("--worker-extension-cls", WORKER_EXTENSION),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        environment = os.environ | _ENVIRONMENT
        self._process = subprocess.Popen(self._command, env=environment, start_new_session=True)
        assert wait_until(self._serves, "vLLM's server", timeout_seconds=300), "the server does not start"

    def kill(self) -> None:
        """Kill the server and its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _serves(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=5):
                return True
        except OSError:
            return False


@contextmanager
def vllm_server(folder: Path, *options: str) -> Iterator[VllmServerProcess]:
    """A server that serves."""
    server = VllmServerProcess(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
