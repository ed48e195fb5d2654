"""Stand-in for sgl_kernel; see sglang_stub. It declares the operators that SGLang names while it imports its models."""

import torch
from sglang_stub import make_stub
from unpinned_memory import use_pageable_memory

__version__ = "0"
__getattr__ = make_stub(__name__)
OPERATORS = torch.library.Library("sgl_kernel", "DEF")
for _operator in (
    "flash_attn_varlen_func",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
):
    OPERATORS.define(f"{_operator}(Tensor tensor) -> Tensor")
use_pageable_memory()
