"""verl's interface of tools, interactions and agent loops, for user code that imports it from `verl`.

`imports.py` provides the modules of this package under verl's names if verl itself is not installed. The classes
follow verl's documented methods, and are Strop's own.
"""
