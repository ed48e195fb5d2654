"""One part of a run as an actor of a Ray cluster, seen from the launcher."""

from __future__ import annotations

from strop.errors import RankLost, StropError, WorkerDied
from strop.run.apart.part import say
from strop.run.apart.ray_serve import Ended, Errand, Said, Stop, serve
from strop.workers.start import OnRay, start_worker

_PAUSE_SECONDS = 0.5


class RayPart:
    """An actor, and another one where that died."""

    def __init__(self, errand: Errand, name: str, place: OnRay, restarts: int) -> None:
        """Place it, as an actor of this name.

        Raises ConfigError where the name is taken, and PlacementError where no node has room.
        """
        self._errand = errand
        self._name = name
        self._place = place
        self._restarts = restarts
        self._restarted = 0
        self._ended: Ended | None = None
        self._start()

    @property
    def is_done(self) -> bool:
        """Whether it has done all that it had to."""
        return self._ended is not None and self._ended.error is None

    def check(self) -> None:
        """Show what it said; place it again if it died. Raises what it ended of, if that is no help."""
        while self._ended is None and self._worker.poll(0):
            self._hear()
        if self._ended is not None and self._ended.error is not None:
            error = StropError(self._ended.error)
            error.exit_code = self._ended.exit_code
            raise error

    def stop(self) -> None:
        """Ask it to save its state and end; it is not placed again."""
        self._restarts = 0
        if self._ended is None:
            self._tell(Stop())

    def wait(self) -> None:
        """Until it has ended, and all that it said is shown."""
        while self._ended is None:
            if self._worker.poll(_PAUSE_SECONDS):
                self._hear()

    def _start(self) -> None:
        self._worker = start_worker(self._name, serve, self._place)
        self._tell(self._errand)

    def _tell(self, message: object) -> None:
        try:
            self._worker.send(message)
        except WorkerDied as death:
            self._died(death)

    def _hear(self) -> None:
        """What it says next, or that it is dead."""
        try:
            message: Said | Ended = self._worker.receive()
        except WorkerDied as death:
            self._died(death)
            return
        if isinstance(message, Said):
            for line in message.lines:
                say(self._errand.order.name, line)
        elif message.exit_code == RankLost.exit_code:
            self._again(str(message.error), message)
        else:
            self._ended = message
            self._worker.end()

    def _died(self, death: WorkerDied) -> None:
        name = self._errand.order.name
        ended = Ended(f"The {name}'s actor ended {death.how}", 1)
        if death.killed:
            self._again(f"The {name}'s actor died: {death.how}.", ended)
        else:
            self._ended = ended

    def _again(self, why: str, ended: Ended) -> None:
        """Place it anew, unless that was done often enough."""
        self._worker.end()  # dead as it may be, Ray keeps its name for it while we know it
        if self._restarted >= self._restarts:
            self._ended = ended
            return
        self._restarted += 1
        say(
            "run",
            f"{why} It is placed again and goes on from its last state ({self._restarted} of "
            f"{self._restarts} times).",
        )
        self._start()
