"""OpenAI-compatible endpoint on the loopback interface.

`server.py` listens; `request.py` and `response.py` are the chat API, and `completions.py` is the API of texts and token
ids. Requests are served by an `EndpointModel`: the trained model, recorded for one rollout
(`strop.workflows.chat`), or an auxiliary model (`strop.inference.auxiliary_model`).
"""
