"""An agent that knows nothing of Strop: it asks a model twice through the openai client, and scores itself.

It wants digits, and the model is random at first; see `agent.yaml` and `../../docs/workflows.md`.
"""


def answer(task, client):
    """The share of digits in the model's second thought."""
    messages = [{"role": "system", "content": "Digits only."}, *task.messages]
    first = client.chat.completions.create(model="gpt-4o-mini", messages=messages, max_tokens=6)
    messages += [first.choices[0].message, {"role": "user", "content": "Sure?"}]
    second = client.chat.completions.create(model="gpt-4o-mini", messages=messages, max_tokens=6)
    text = second.choices[0].message.content
    return sum(character.isdigit() for character in text) / max(1, len(text))
