"""Models behind OpenAI's protocol, on this machine alone.

`server.py` listens; `request.py` reads what is asked and `reply.py` writes what is answered. What answers is
an `Answerer`: the model that is trained, recorded for one rollout (`strop.workflows.recorded`), or one that
helps (`strop.inference.auxiliary`).
"""
