"""Parameters that DeepSpeed partitions (ZeRO): their full values, for which all ranks must call.

A parameter of ZeRO-3 is empty between two passes. A trained one has a float32 master value, of which each rank holds
a part, in every stage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_zero_parameter(tensor: Tensor) -> bool:
    """Whether DeepSpeed holds the tensor's value, or its master value, in parts."""
    return hasattr(tensor, "ds_id") or hasattr(tensor, "_hp_mapping")


@torch.no_grad()
def full_zero_parameter(parameter: Any) -> Tensor:
    """The full value: of a trained parameter its float32 master, of a frozen one the value that computes."""
    if parameter.requires_grad:
        from deepspeed.utils import safe_get_full_fp32_param

        master: Tensor = safe_get_full_fp32_param(parameter)
        return master
    if not hasattr(parameter, "ds_id"):
        whole: Tensor = parameter.detach()
        return whole
    parameter.all_gather()
    gathered: Tensor = parameter.detach().clone()
    parameter.partition()
    return gathered
