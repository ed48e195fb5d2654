"""Reference page and JSON Schema of the run file, generated from the schema.

`make docs` writes them, together with the pages of other tools' keys.
"""
