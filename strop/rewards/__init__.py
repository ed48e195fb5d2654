"""How an answer is scored: built-in rewards, a user's own, and running them safely in parallel.

`table.py` names the built-ins, one file each. `resolve.py` finds a function, `signature.py`
understands how it wants to be called, `pool.py` and `worker.py` run it under a time limit, and
`score.py` is what the rest of Strop uses. Nothing here imports torch.
"""
