"""Where experiences wait between explorer and trainer, by whole groups.

`table.py` opens what a run file asks for: `queue.py` (first in, first out) and `priority.py` in memory,
both with a `backup.py`; `sql/` in a database; `file.py` in a folder. `codec.py` turns groups into bytes.
"""
