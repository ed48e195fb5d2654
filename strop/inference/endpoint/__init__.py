"""OpenAI-compatible chat endpoint on the loopback interface.

`server.py` listens, `request.py` parses requests and `response.py` builds responses. Requests are served by a
`ChatModel`: the trained model, recorded for one rollout (`strop.workflows.recorded_policy`), or an auxiliary
model (`strop.inference.auxiliary_model`).
"""
