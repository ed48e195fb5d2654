"""Continuous batching: who goes through the model in the next step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strop.inference.native.moves import moves_for
from strop.inference.native.rows import Rows
from strop.inference.native.runner import Runner
from strop.inference.native.ticket import Call, Ticket


@dataclass(slots=True)
class Prompt:
    """A prompt whose keys and values are in the cache."""

    key: bytes | None
    """Its tokens; None when the weights have changed since, so that nobody joins it."""
    tokens: int
    logits: torch.Tensor
    """[V] What its rows draw their first token from."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Where the engine stands; counts go on from its making."""

    tokens: int
    """Drawn so far."""
    prompt_tokens: int
    """Put through the model as prompts; a shared prompt counts once."""
    rows: int
    """Completions under way."""
    waiting: int
    """Completions that wait for room."""


class Scheduler:
    """Lets waiting requests in as they come, as long as the cache has room for all they may draw.

    Room is kept for the whole of `max_tokens` from the start: what is let in always runs to its end.
    """

    def __init__(self, runner: Runner, rows: Rows, cache_tokens: int, max_sequences: int) -> None:
        self._runner = runner
        self._rows = rows
        self._cache_tokens = cache_tokens
        self._max_sequences = max_sequences
        self._waiting: deque[Ticket] = deque()
        self._prompts: list[Prompt] = []
        self._changed = False
        """Rows have left or requests have come since admission was last tried."""
        self._tokens = 0
        self._prompt_tokens = 0
        self.version = 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._waiting or len(self._rows))

    @property
    def stats(self) -> Stats:
        """Where it stands."""
        return Stats(self._tokens, self._prompt_tokens, len(self._rows), len(self._waiting))

    def put(self, tickets: Sequence[Ticket]) -> None:
        """Requests to be answered, in this order."""
        self._waiting.extend(tickets)
        self._changed = True

    def forget_cancelled(self) -> None:
        """Take out the requests of every cancelled call: where one is, there are often many."""
        for call in self.calls():
            call.forgotten = call.future.cancelled()
        self._waiting = deque(ticket for ticket in self._waiting if not ticket.call.forgotten)
        leaving = [ticket.call.forgotten for ticket in self._rows.tickets]
        self._drop(torch.tensor(leaving, dtype=torch.bool, device=self._runner.device))

    def clear(self) -> None:
        """Forget all requests."""
        self._waiting.clear()
        self._prompts.clear()
        self._rows.clear()
        self._runner.clear()

    def forget_prompts(self) -> None:
        """The weights have changed: the next request with an old prompt starts anew."""
        for prompt in self._prompts:
            prompt.key = None

    def calls(self) -> list[Call]:
        """Every call that still waits for an answer."""
        tickets = (*self._waiting, *self._rows.tickets)
        return list(dict.fromkeys(ticket.call for ticket in tickets))

    def step(self) -> None:
        """Let in who fits, and draw one token for every row (new ones draw their first beside)."""
        self._admit()
        if len(self._rows):
            self._draw(self._runner.decode(self._rows.last_tokens), first=0)

    def fits(self, ticket: Ticket) -> bool:
        """Whether a request has room when it is alone: then the widths it is stored at do not count."""
        return ticket.prompt_tokens + ticket.request.sampling.max_tokens <= self._cache_tokens

    def _admit(self) -> None:
        if not (self._waiting and self._changed):
            return
        self._changed = False
        chosen = self._choose()
        if not chosen or not self._runner.joins_well(len(chosen), len(self._rows)):
            return
        for _ in chosen:
            self._waiting.popleft()
        slots = self._prefill(chosen)
        first = len(self._rows)
        self._rows.add(chosen, slots, self.version)
        self._runner.add_rows(slots)
        logits = torch.stack([self._prompts[slot].logits for slot in slots])
        if not self._runner.keeps_prompts:
            self._prompts.clear()
        self._draw(logits, first)

    def _choose(self) -> list[Ticket]:
        """The longest run from the head of the queue that has room beside the rows under way."""
        rows = self._rows.tickets
        row_tokens = max((ticket.request.sampling.max_tokens for ticket in rows), default=0)
        prompt_tokens = max((ticket.prompt_tokens for ticket in rows), default=0)
        prompts: set[bytes | None] = {prompt.key for prompt in self._prompts}
        old_prompts = len(self._prompts) - len(prompts)
        chosen: list[Ticket] = []
        for ticket in self._waiting:
            prompts.add(ticket.prompt)
            row_tokens = max(row_tokens, ticket.request.sampling.max_tokens)
            prompt_tokens = max(prompt_tokens, ticket.prompt_tokens)
            count = len(rows) + len(chosen) + 1
            needed = self._runner.tokens_needed(count, row_tokens, len(prompts) + old_prompts, prompt_tokens)
            if count > self._max_sequences or (needed > self._cache_tokens and count > 1):
                break
            chosen.append(ticket)
        return chosen

    def _prefill(self, tickets: Sequence[Ticket]) -> list[int]:
        """Each ticket's prompt slot; prompts that are not in the cache go through the model once."""
        slots = {prompt.key: slot for slot, prompt in enumerate(self._prompts) if prompt.key is not None}
        new = {ticket.prompt: ticket.request.prompt_ids for ticket in tickets if ticket.prompt not in slots}
        if new:
            logits = self._runner.prefill(list(new.values()))
            for (key, tokens), row in zip(new.items(), logits, strict=True):
                slots[key] = len(self._prompts)
                self._prompts.append(Prompt(key, len(tokens), row))
                self._prompt_tokens += len(tokens)
        return [slots[ticket.prompt] for ticket in tickets]

    def _draw(self, logits: torch.Tensor, first: int) -> None:
        rows = self._rows
        rows.draw(logits, first)
        self._tokens += len(rows) - first
        finished = rows.finished(first)
        for row in finished.leaving.nonzero()[:, 0].tolist():
            ticket = rows.tickets[row]
            ticket.call.deliver(ticket.place, rows.completion(row, bool(finished.stopped[row])))
        self._drop(finished.leaving)

    def _drop(self, leaving: torch.Tensor) -> None:
        """Let rows go, and then the prompts that nobody uses."""
        if not leaving.any():
            return
        moves = moves_for(leaving)
        self._rows.drop(moves)
        self._runner.drop_rows(moves)
        self._changed = True
        if self._prompts:
            self._drop_prompts()

    def _drop_prompts(self) -> None:
        unused = torch.ones(len(self._prompts), dtype=torch.bool, device=self._runner.device)
        unused[self._rows.slots] = False
        if unused.any():
            moves = moves_for(unused)
            self._rows.slots = moves.new_places()[self._rows.slots]
            self._runner.drop_prompts(moves)
            moves.apply_to_list(self._prompts)
