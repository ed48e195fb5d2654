"""Experience buffers: they hold groups of experiences between explorer and trainer.

`factory.py` opens the buffer that a run file asks for: `queue.py` (first in, first out) and `priority.py`
in memory, both with a `backup.py`; `sql/` in a database; `file.py` in a folder. `codec.py` turns groups
into bytes.
"""
