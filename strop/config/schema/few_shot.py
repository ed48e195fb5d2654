"""`few_shot` of a taskset: solved examples in front of each prompt."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strop.config.schema.base import Section


class FewShotConfig(Section):
    """Solved examples in front of each prompt of a taskset, the same ones for each task. An example whose prompt is the
    task's own is left out, and the next one is used."""

    path: str
    """Dataset of the examples, as a taskset's `path`; its first rows are used."""
    split: str | None = None
    """Split of a dataset with several splits."""
    subset: str | None = None
    """Subset of a dataset with several subsets."""
    prompt: str = "prompt"
    """Column of an example's prompt, as in a taskset."""
    answer: str = "answer"
    """Column of an example's answer: the text of a complete response."""
    count: int = Field(4, gt=0)
    """Number of examples."""
    text: str | None = None
    """Text of one example with `{prompt}` and `{answer}`, such as "Q: {prompt}\\nA: {answer}\\n\\n"; the texts of all
    examples precede the first user message's own. Null to write each example as a user's and an assistant's message."""

    def faults(self) -> Iterator[str]:
        """A text without the example's prompt or answer."""
        for name in ("{prompt}", "{answer}"):
            if self.text is not None and name not in self.text:
                yield f"text has no {name}; write both, such as 'Q: {{prompt}}\\nA: {{answer}}\\n\\n'"
