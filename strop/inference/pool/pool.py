"""Several engines as one: who gets which request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import save_file

from strop.inference.pool.member import Member, Ticket, Wanted
from strop.inference.pool.messages import Load
from strop.types import Completion, SampleRequest
from strop.workers.shared import SharedFile
from strop.workers.start import Place


class EnginePool:
    """Deals requests to engines that are processes of their own: an `InferenceEngine`.

    Each request goes to the engine with the fewest under way; those with the same prompt go to the same
    one as long as it has any of them, so that it encodes the prompt once. What is asked in one turn of the
    event loop is let in together, so a step whose requests all come at once gives the same completions
    every time, bit for bit. An engine that dies is replaced and asked again; nothing is lost.
    """

    def __init__(self, wanted: Sequence[Wanted], place: Place, max_restarts: int) -> None:
        """Start and make them, all in one kind of place; each is started again so often at most.

        Raises what is raised in the making of one, and PlacementError where there is no room for it.
        """
        self._place = place
        self._members: list[Member] = []
        self._weights: SharedFile | None = None
        self._numbers = count()
        self._undealt: list[Ticket] = []
        self._of: dict[int, tuple[Member, bytes]] = {}
        """Whom a ticket was dealt to, and its prompt."""
        self._loads: Counter[Member] = Counter()
        self._at: dict[bytes, tuple[Member, int]] = {}
        """Who has a prompt under way, and how often."""
        try:
            for each in wanted:
                self._members.append(Member(each, place, max_restarts))
            forwards = [member.wait_made() for member in self._members]
        except BaseException:
            self.close()
            raise
        self._forward = forwards[0]

    device = torch.device("cpu")
    """Where new weights are best given to it: from there they go into a file."""

    @property
    def description(self) -> str:
        """One line: how many there are, and what each of them is."""
        many = f"{len(self._members)} engines" if len(self._members) > 1 else "1 engine"
        return f"{self._forward}; {many}, each a process with a copy of the weights and a cache of its own"

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError`, and answers none of them, when one cannot be taken as it is; `EngineLost`
        where an engine has died too often. When the awaiting task is cancelled, they are forgotten.
        """
        loop = asyncio.get_running_loop()
        tickets = [Ticket(next(self._numbers), request, loop.create_future()) for request in requests]
        self._undealt += tickets
        loop.call_soon(self._deal)
        try:
            return await asyncio.gather(*(ticket.future for ticket in tickets))
        finally:
            self._let_go(tickets)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Give all of them new weights, through one file in memory; returns when they have them.

        Raises `ModelError` for weights of another model, and `EngineLost`.
        """
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights}
        size = sum(tensor.nbytes for tensor in tensors.values())
        shared = SharedFile(partial(_write, tensors), size, self._place)
        load = Load(shared.content, version, next(self._numbers))
        for member in self._members:
            member.load(load)
        old, self._weights = self._weights, shared
        for member in self._members:
            member.wait_loaded()
        if old is not None:
            old.close()

    def pause(self) -> None:
        """Stop drawing tokens; what is under way keeps its state."""
        for member in self._members:
            member.draw(on=False)

    def resume(self) -> None:
        """Go on drawing."""
        for member in self._members:
            member.draw(on=True)

    def close(self) -> None:
        """End all engines, whatever they are doing."""
        for member in self._members:
            member.end()
        if self._weights is not None:
            self._weights.close()

    def _deal(self) -> None:
        tickets, self._undealt = self._undealt, []
        dealt: dict[Member, list[Ticket]] = {}
        for ticket in tickets:
            if not ticket.future.done():
                dealt.setdefault(self._choose(ticket), []).append(ticket)
        for member, theirs in dealt.items():
            member.ask(theirs)

    def _choose(self, ticket: Ticket) -> Member:
        prompt = ticket.request.prompt_ids.tobytes()
        idlest = min(self._members, key=lambda member: self._loads[member])
        member, times = self._at.get(prompt, (idlest, 0))
        self._at[prompt] = (member, times + 1)
        self._loads[member] += 1
        self._of[ticket.number] = (member, prompt)
        return member

    def _let_go(self, tickets: Sequence[Ticket]) -> None:
        """What is not answered is forgotten."""
        unanswered: dict[Member, list[int]] = {}
        for ticket in tickets:
            if ticket.number not in self._of:
                continue
            member, prompt = self._of.pop(ticket.number)
            self._loads[member] -= 1
            times = self._at[prompt][1]
            if times == 1:
                del self._at[prompt]
            else:
                self._at[prompt] = (member, times - 1)
            if not ticket.future.done() or ticket.future.cancelled():
                unanswered.setdefault(member, []).append(ticket.number)
        for member, numbers in unanswered.items():
            member.forget(numbers)


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
