"""The pages of docs/reference and the JSON Schema, written from the schema and the ledgers.

python -m strop.config.reference          # from the repository's root; `make docs` calls it
python -m strop.config.reference --check  # fails where a page is stale
"""
