"""Brokers, which carry trajectories from explorers to the Learner and weights back."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from offrl.online.explorer import Explorer, Trajectory, Weights
from offrl.seeding import preserved_rng

log = logging.getLogger(__name__)

TRIES = 3  # failures in a row after which an explorer is given up

# Errors of environments, their processes or policies; others are bugs.
FAILURES = (ValueError, ArithmeticError, LookupError, RuntimeError, ChildProcessError)

MakeExplorer = Callable[[int, int], Explorer]  # arguments: number and life


class Broker(ABC):
    """Lets explorers act by the newest weights, and returns each of their trajectories once.

    An explorer that fails is replaced; one that fails ``TRIES`` times in a row is given up, and the
    others go on without it. ``ChildProcessError`` if none is left.

    make_explorer: makes an explorer of its number and life (the count of its predecessors).
    num_explorers: the explorers have the numbers below this.
    life: that of the first explorers.
    """

    def __init__(self, make_explorer: MakeExplorer, num_explorers: int, life: int = 0):
        self._make_explorer = make_explorer
        self._lives = dict.fromkeys(range(num_explorers), life)
        self._last_life = life  # the highest so far
        self._failures = dict.fromkeys(range(num_explorers), 0)  # in a row
        self.lost: dict[int, str] = {}  #: Reasons why explorers were given up.
        #: Called each second while waiting for other processes; may raise to stop the wait.
        self.waiting: Callable[[], None] = lambda: None

    @property
    def problems(self) -> list[str]:
        """Say which explorers were given up, and why."""
        return [f"explorer {number} was given up: {why}" for number, why in self.lost.items()]

    @abstractmethod
    def publish(self, weights: Weights) -> None:
        """Use these weights for trajectories that begin from now on."""

    @abstractmethod
    def receive(self) -> Trajectory:
        """Wait for the next trajectory."""

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``."""
        return {"last_life": self._last_life}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with explorers that begin new episodes."""
        self._last_life = state["last_life"] + 1
        self._lives = dict.fromkeys(self._lives, self._last_life)

    @abstractmethod
    def close(self) -> None:
        """End the explorers."""

    def _note_failure(self, number: int, why: str) -> None:
        """Replace an explorer that failed, or give it up."""
        reason = f"explorer {number} failed: {why}"
        self._failures[number] += 1
        self._lives[number] += 1
        self._last_life = max(self._last_life, self._lives[number])
        if self._failures[number] < TRIES:
            log.warning(f"{reason}; another one takes its place")
            return
        self.lost[number] = why
        del self._lives[number]
        if not self._lives:
            raise ChildProcessError(
                f"{reason}. No explorer is left, as each failed {TRIES} times in a row; mend that, "
                "and go on with this run (--resume)"
            )
        log.warning(f"{reason}; it is given up after {TRIES} tries, and the others go on")


class LocalBroker(Broker):
    """Lets explorers act in turn in this process, each for a trajectory, by the newest weights.

    With the random state of the process, its state determines how explorers continue.
    """

    def __init__(self, make_explorer: MakeExplorer, num_explorers: int, life: int = 0):
        super().__init__(make_explorer, num_explorers, life)
        self._next = 0
        self._weights: Any = None
        # Errors appear before anything is written.
        self._explorers = {number: make_explorer(number, life) for number in self._lives}

    def publish(self, weights: Weights) -> None:
        self._weights = weights

    def receive(self) -> Trajectory:
        while True:
            number = min(self._lives, key=lambda x: (x < self._next, x))  # round robin
            self._next = number + 1
            try:
                explorer = self._explorer(number)
                explorer.load(self._weights)
                trajectory = explorer.explore()
            except FAILURES as error:
                self._note_failure(number, str(error))
                self._drop(number)
                continue
            self._failures[number] = 0
            return trajectory

    def _explorer(self, number: int) -> Explorer:
        if number not in self._explorers:
            with preserved_rng():
                self._explorers[number] = self._make_explorer(number, self._lives[number])
        return self._explorers[number]

    def _drop(self, number: int) -> None:
        if number in self._explorers:
            self._explorers.pop(number).close()

    def state(self) -> dict[str, Any]:
        explorers = {
            str(number): {"life": x.life, "state": x.state()}
            for number, x in self._explorers.items()
        }
        return super().state() | {"explorers": explorers, "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the explorers in ``state``. Others, also those that were on Ray or given
        up, begin new episodes."""
        super().restore(state)
        self._next = state.get("next", 0)
        stored = state.get("explorers", {})
        self._lives |= {int(number): x["life"] for number, x in stored.items()}
        self._last_life = max(state["last_life"], *self._lives.values())
        for number, life in self._lives.items():
            if number in self._explorers and self._explorers[number].life != life:
                self._drop(number)
            if str(number) in stored:
                self._explorer(number).restore(stored[str(number)]["state"])

    def close(self) -> None:
        for explorer in self._explorers.values():
            explorer.close()
