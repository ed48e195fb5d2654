"""Import of vLLM, and the environment variables that it reads at that moment."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from strop.errors import MissingExtraError

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The CPU build binds its threads to cores by itself, the same cores for every engine of a machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Variables that are set before the import, unless they are set already."""


@dataclass(frozen=True, slots=True)
class VllmLibrary:
    """The classes of vLLM that Strop uses."""

    version: str
    engine_args: Any
    """`AsyncEngineArgs`, a dataclass of the engine's arguments."""
    engine: Any
    """`AsyncLLM`"""
    sampling_params: Any
    tokens_prompt: Any
    final_output: Any
    """Output kind of a request that is answered once, at its end."""
    lora_request: Any
    dead_error: type[Exception]
    """Exception of calls after the end of vLLM's engine process."""


def is_vllm_installed() -> bool:
    """Whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def import_vllm() -> VllmLibrary:
    """Import vLLM. Raises `MissingExtraError` if it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise MissingExtraError(
            f"An engine of the run has type vllm, and vLLM cannot be imported ({error}): pip install 'strop[vllm]'"
        ) from error
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    return VllmLibrary(
        version=vllm.__version__,
        engine_args=AsyncEngineArgs,
        engine=AsyncLLM,
        sampling_params=SamplingParams,
        tokens_prompt=TokensPrompt,
        final_output=RequestOutputKind.FINAL_ONLY,
        lora_request=LoRARequest,
        dead_error=EngineDeadError,
    )
