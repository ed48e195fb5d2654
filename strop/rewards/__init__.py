"""Reward functions: built-in rewards, user functions, judges, and their execution in worker processes.

`registry.py` finds a function by its name; the built-in rewards are in `builtin/`. `execution/signature.py` binds a
function's arguments, and `execution/worker_pool.py` and `execution/worker.py` call it in worker processes under a
time limit. `scorer.py` is the interface for the rest of Strop. No module of this package imports torch.
"""
