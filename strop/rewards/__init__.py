"""Reward functions: built-in rewards, user functions, judges, and their execution in worker processes.

`registry.py` lists the built-in rewards, one file each in `builtin/`. `resolve.py` finds a function by its
name, `execution/signature.py` binds its signature, and `execution/worker_pool.py` and `execution/worker.py` call
it in worker processes under a time limit. `scorer.py` is the interface for the rest of Strop. No module of
this package imports torch.
"""
