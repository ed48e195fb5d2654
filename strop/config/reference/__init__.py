"""Reference page and JSON Schema of the run file, generated from the schema.

`strop.dialects.reference` writes them, together with the pages of the dialects.
"""
