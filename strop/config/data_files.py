"""Names of data files, by which everything that reads a path recognizes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FileFormat = Literal["parquet", "json", "csv"]

DATA_FILE_PATTERNS = (
    "*.parquet, *.jsonl or *.json (one object per line, or one list of them), *.csv or *.tsv (the last four also "
    "packed, as *.jsonl.gz or *.csv.zst)"
)
_SUFFIX = re.compile(
    r"\.(?:(?P<parquet>parquet)|(?:(?P<table>csv|tsv)|jsonl|ndjson|json)(?P<packed>\.gz|\.zst|\.bz2)?)$"
)


@dataclass(frozen=True, slots=True)
class DataFileName:
    """Format, compression and delimiter of a data file, by its name."""

    format: FileFormat
    packed: str | None
    """Suffix of the compression: `.gz`, `.zst` or `.bz2`; None for a file that is not compressed."""
    delimiter: str
    """Character between the values of a row of CSV or TSV."""


def data_file_name(path: str) -> DataFileName | None:
    """The format of a data file, by its name or URL; None for other files, folders and names on the Hub."""
    match = _SUFFIX.search(re.split(r"[?#]", path)[0] if "://" in path else path)
    if match is None:
        return None
    form: FileFormat = "parquet" if match["parquet"] else "csv" if match["table"] else "json"
    return DataFileName(form, match["packed"], "\t" if match["table"] == "tsv" else ",")
