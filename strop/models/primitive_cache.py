"""A limit for the matrix products that oneDNN keeps compiled on a CPU."""

from __future__ import annotations

import os

_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_PRIMITIVES = "64"


def limit_primitive_cache() -> None:
    """Let oneDNN keep 64 compiled products, unless the environment says another number.

    It compiles a product for each shape, of which almost every micro-batch has new ones, and keeps 1,024: about 30 MB
    more with every step, for shapes that do not come back. It reads the variable at the first product of a process.
    """
    os.environ.setdefault(_CAPACITY, _PRIMITIVES)
