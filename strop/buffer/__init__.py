"""Experience buffers: they hold groups of experiences between explorer and trainer.

`factory.py` opens the buffer that a run file asks for: `queue.py` in memory, in an order of `queue_policy.py` and
with a `backup.py`; `sql/` in a database; `file.py` in a folder. `codec.py` turns groups into bytes.
"""
