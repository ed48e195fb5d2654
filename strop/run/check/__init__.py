"""Checks of `strop check` on a run, before its model is loaded, and a list of what they leave out.

`stage_check.py` gathers all of it. It asks the functions that `train` asks for its refusals, so that both use the same
words. `user_code.py` imports and calls the user's code, in a worker process.
"""
