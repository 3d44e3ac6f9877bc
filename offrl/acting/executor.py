"""The execution of action chunks: it decides when one is predicted, and which actions are played.

Receding horizon (Chi et al., 2023, arXiv:2303.04137): of each chunk the first ``action_horizon``
actions are played, then comes the next. Temporal ensembling (Zhao et al., 2023, arXiv:2304.13705):
chunks that overlap are averaged. Asynchronous: the next chunk is inferred while the last one is
played, and its actions that are past by then are skipped.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from offrl.lazy import Tensor, torch

State = Mapping[str, Tensor]
Played = tuple[Tensor, Tensor, State]  # actions, which environments have one, the next state
#: Takes indices ``[N]`` of environments, keeps their present observations, and returns a function
#: that infers their chunks ``[N, H, A]``, whose first actions are due now.
Predict = Callable[[Tensor], Callable[[], Tensor]]


@dataclass(frozen=True)
class Executor:
    """Plays the chunks of a policy in any number of environments.

    Time is counted in steps of the environment. A chunk that is asked for now comes ``latency``
    steps later. Until then a synchronous policy waits; an asynchronous one asks early enough not to
    wait, and plays the present chunk, also beyond the action horizon. It does not ask early if
    chunks are no longer than their latency, since all actions might be past when one comes.
    """

    action_horizon: int
    #: Chunks weigh ``exp(-ensemble * i)``, ``i`` from the oldest on; ``None``: the newest alone.
    ensemble: float | None = None
    latency: int = 0
    asynchronous: bool = False

    def step(self, num_envs: int, state: State | None, predict: Predict) -> Played:
        """Choose the next actions ``[B, A]`` and say which environments have one, ``[B]``; the
        others wait. Returns the next state as well; ``None`` and rows of zeros are starts.
        ``predict`` is called only where a chunk is needed."""
        state = dict(state or {})
        if state:
            waits = state["waits"]
            state["waits"] = (waits - 1).clamp(min=0)
            self._receive(state, (waits == 1).nonzero().flatten())
            comes_in_time = self.asynchronous and self.latency < state["counts"].shape[1]
            lead = self.latency if comes_in_time else 0
            due = ((state["waits"] == 0) & (state["left"] <= lead)).nonzero().flatten()
        else:
            due = torch.arange(num_envs)
        if len(due):
            chunks = predict(due)()
            state = state or _empty_state(num_envs, chunks)
            due = due.to(state["waits"].device)
            asked: dict[str, Any] = {"coming": chunks, "waits": self.latency, "played": 0}
            for name, values in asked.items():
                state[name] = state[name].clone()
                state[name][due] = values
            if self.latency == 0:
                self._receive(state, due)
        return self._play(state)

    def _receive(self, state: dict[str, Tensor], rows: Tensor) -> None:
        """Add the actions of new chunks that are not past to the plans of ``rows``."""
        if not len(rows):
            return
        horizon = state["counts"].shape[1]
        steps = torch.arange(horizon, device=rows.device) + state["played"][rows, None]
        is_due = (steps < horizon).to(state["counts"])
        chunks = state["coming"][rows, :]
        index = steps.clamp(max=horizon - 1)[..., None].expand_as(chunks)
        chunks = chunks.gather(1, index) * is_due[..., None]
        sums, counts = state["sums"].clone(), state["counts"].clone()
        if self.ensemble is None:
            sums[rows], counts[rows] = chunks, is_due
        else:
            weights = torch.exp(-self.ensemble * counts[rows])[..., None]
            sums[rows] += weights * chunks
            counts[rows] += is_due
        left = state["left"].clone()
        left[rows] = is_due.sum(1).clamp(max=self.action_horizon).to(left)
        state |= {"sums": sums, "counts": counts, "left": left}

    def _play(self, state: dict[str, Tensor]) -> Played:
        now = state["counts"][:, 0]
        plays = now > 0 if self.asynchronous else state["left"] > 0
        weights = now.clamp(min=1)
        if self.ensemble:  # the sum of the weights of so many chunks
            decay = math.exp(-self.ensemble)
            weights = (1 - decay**weights) / (1 - decay)
        actions = state["sums"][:, 0] / weights[:, None]
        for name in ("sums", "counts"):
            later = state[name].roll(-1, dims=1)
            later[:, -1] = 0
            moves = plays.view(-1, *[1] * (later.ndim - 1))
            state[name] = torch.where(moves, later, state[name])
        state["left"] = (state["left"] - plays.long()).clamp(min=0)
        state["played"] = state["played"] + plays.long()
        return actions, plays, state


class RealTime:
    """An asynchronous executor for one robot, in real time: a chunk is inferred in a thread while
    the last one is played. It asks for a chunk as many steps ahead as were played during the last
    inference, and one step earlier if it had to wait for that.

    ``policy.executor = RealTime(policy.executor)`` has a ``RolloutPolicy`` play so. It blocks, so
    that the robot waits, for the first chunk of an episode and when no action is left.
    """

    def __init__(self, executor: Executor):
        self.executor = replace(executor, latency=0, asynchronous=True)
        self.latency = 1  # steps of the last inference
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offrl-inference")
        self._coming: Future[Tensor] | None = None

    def step(self, num_envs: int, state: State | None, predict: Predict) -> Played:
        """See ``Executor.step``."""
        if num_envs != 1:
            raise ValueError(f"{num_envs} environments, but one robot alone acts in real time")
        row = torch.zeros(1, dtype=torch.long)
        if state is None:  # a chunk still coming is of another episode
            chunk = self._thread.submit(predict(row)).result()  # after the running inference
            state = _empty_state(1, chunk) | {"coming": chunk}
            self.executor._receive(state, row)
            self._coming = None
        state = dict(state)
        if self._coming is not None and (self._coming.done() or not state["counts"][0, 0]):
            self.latency = max(1, int(state["played"]) + (not self._coming.done()))
            state["coming"], self._coming = self._coming.result(), None
            self.executor._receive(state, row)
        if self._coming is None and int(state["left"]) <= self.latency:
            self._coming = self._thread.submit(predict(row))
            state["played"] = torch.zeros_like(state["played"])
        return self.executor._play(state)


def _empty_state(num_envs: int, like: Tensor) -> dict[str, Tensor]:
    """Make a state without any chunk, for chunks shaped as ``like`` ``[N, H, A]``."""
    blank = like.new_zeros(num_envs, *like.shape[1:])
    count = torch.zeros(num_envs, dtype=torch.long, device=like.device)
    names = ("left", "waits", "played")
    return {"sums": blank, "counts": blank[..., 0], "coming": blank} | dict.fromkeys(names, count)
