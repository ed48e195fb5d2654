"""An agent of the package smolagents, which writes Python code until it knows the answer (`smol_agent.yaml`).

It knows nothing of Strop: the environment says where the model is, and the task comes as an argument.
"""

from __future__ import annotations

import os
import sys

from smolagents import CodeAgent, LogLevel, OpenAIServerModel

model = OpenAIServerModel(
    os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
agent = CodeAgent(tools=[], model=model, max_steps=3, verbosity_level=LogLevel.OFF)
print(agent.run(sys.argv[1]))
