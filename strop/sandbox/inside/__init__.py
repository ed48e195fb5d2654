"""Code that runs in the sandboxed process: confinement of the process, then the program.

The package uses the standard library only, and relative imports: it is imported from its folder alone, because
the process can read nothing else of Strop.
"""
