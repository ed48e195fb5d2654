"""Recognition of a text that a chat template has rendered before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = "strop-probe-7a40d2"
"""Content around which a template shows what it writes."""
_MARKUP = ("<s>", "</s>")
"""Special tokens that are also markup of ordinary text."""


@dataclass(frozen=True, slots=True)
class RenderedText:
    """Text and tokens of a chat template around a user's message, by which a text that it rendered is known."""

    tokens: tuple[str, ...]
    """Special tokens that the template writes for every conversation, except at its beginning."""
    first: str
    """The tokenizer's token at the beginning of a text; empty for none."""
    before: str
    after: str
    """Text of the template before and after the content, without `first` and white space at its ends."""

    @classmethod
    def of(cls, render: Callable[..., str], tokenizer: PreTrainedTokenizerBase) -> RenderedText:
        """`render` renders messages, with `prompt` up to the start of the answer."""
        whole = render(({"role": "user", "content": _PROBE},), prompt=True)
        before, _, after = whole.partition(_PROBE)
        first = tokenizer.bos_token or ""
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        written = sorted(token for token in special - {first, *_MARKUP} if token in whole)
        return cls(tuple(written), first, before.removeprefix(first).strip(), after.strip())

    def find(self, text: str) -> str | None:
        """A token that only the template writes, or the end of a text that is rendered as a whole; None for others."""
        found = next((token for token in self.tokens if token in text), None)
        if found is not None or not (self.before and self.after and text.rstrip().endswith(self.after)):
            return found
        begun = text.lstrip().removeprefix(self.first).lstrip()
        return self.after if begun.startswith(self.before) else None
