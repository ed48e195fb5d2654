"""Import of DeepSpeed, which takes seconds and is needed only by the ranks of its backend."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from strop.errors import MissingExtraError

_ACCELERATOR_ENV = "DS_ACCELERATOR"
_LOCAL_RANK_ENV = "LOCAL_RANK"
_DEPRECATED_COLLECTIVES = (
    r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
)
"""Message of torch about operations that DeepSpeed uses."""
_SHARED_MEMORY_OP = "deepspeed_shm_comm"
"""Collective operations of CPU ranks in C++, which DeepSpeed compiles on first use; gloo does the same."""


def import_deepspeed(device_type: str) -> Any:
    """The module, for ranks on `cpu` or `cuda`. Raises MissingExtraError where it is not installed."""
    os.environ[_ACCELERATOR_ENV] = device_type
    try:
        import deepspeed
        from deepspeed import ops
    except ImportError as error:
        raise MissingExtraError(
            f"trainer.engine is deepspeed, and DeepSpeed cannot be imported ({error}): pip install 'strop[deepspeed]'"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=_DEPRECATED_COLLECTIVES, category=FutureWarning)
    ops.__compatible_ops__[_SHARED_MEMORY_OP] = False
    return deepspeed


@contextmanager
def local_rank(device: torch.device) -> Iterator[None]:
    """While DeepSpeed runs: the index of this rank's device, which it reads from the environment."""
    before = os.environ.get(_LOCAL_RANK_ENV)
    os.environ[_LOCAL_RANK_ENV] = str(device.index or 0)
    try:
        yield
    finally:
        os.environ.pop(_LOCAL_RANK_ENV)
        if before is not None:
            os.environ[_LOCAL_RANK_ENV] = before


def close_deepspeed() -> None:
    """Forget DeepSpeed's process groups, numbers of modules and replacement of `linear`, if it is loaded, so that this
    process can join other ranks afterwards, which count from 0 and have torch's `linear`.

    With another `linear` than the others a rank would sum its gradients in another order, which ZeRO-2 mixes up.
    """
    if "deepspeed" not in sys.modules:
        return
    from deepspeed.comm import comm
    from deepspeed.runtime.zero import parameter_offload, partition_parameters
    from deepspeed.utils import groups

    comm.cdb = None
    groups._WORLD_GROUP = None
    partition_parameters.Init.param_id = 0
    parameter_offload.FWD_MODULE_STACK.clear()
    parameter_offload.DeepSpeedZeRoOffload._register_deepspeed_module.__defaults__[0][0] = 0
    functional.linear = getattr(
        partition_parameters.InsertPostInitMethodToModuleSubClasses, "linear_bk", functional.linear
    )
