"""A replay buffer for learning while acting: a ring store of steps, and batches of these with the
keys and shapes of batches of recorded data."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.computed import returns_to_go
from offrl.data.sampling import Hindsight, Priorities
from offrl.data.steps import StepStore
from offrl.data.windows import Window, WindowDataset, Windows, num_gathered
from offrl.tree import map_leaves

RUNNING = 2**62  # the end of a running episode
# The shape of a step and the dtype, by "obs/KEY" or "actions".
Columns = Mapping[str, tuple[Sequence[int], Any]]


class ReplayStore(StepStore):
    """Stores the steps of ``num_envs`` environments in order, each environment's in a part of the
    rows. When a part is full, new rows replace the oldest.

    A row holds an observation and, where ``is_step``, the step that was taken from there. The next
    row holds the observation after it, so that observations are stored once. Rows without a step
    are ends of episodes, or of a part, after which the episode continues as a new one.

    num_frames: the number of stacked observations, which are kept together.
    discount: for the column ``returns``, if there is one: the discounted sum of rewards to the end
        of the episode, which is minus infinity (a lower bound) until the episode ends (Nakamoto et
        al., 2023, arXiv:2303.05479, add whole episodes only).
    """

    def __init__(
        self,
        num_envs: int,
        capacity: int,
        columns: Columns,
        num_frames: int = 1,
        discount: float = 1.0,
    ):
        super().__init__()
        self.discount = discount
        self.num_envs, self.num_before = num_envs, num_frames - 1
        self.num_rows = -(-capacity // num_envs) + num_frames  # of each part
        total = num_envs * self.num_rows
        columns = {"rewards": ((), np.float32), "dones": ((), np.float32), **columns}
        self.arrays = {k: np.zeros((total, *shape), kind) for k, (shape, kind) in columns.items()}
        self.fill(self.arrays)
        self._obs = {k.removeprefix("obs/"): x for k, x in self.arrays.items() if k[:4] == "obs/"}
        self.is_step = np.zeros(total, dtype=bool)
        self.begins = np.zeros(total, dtype=np.int64)  # the first row of the same episode
        self.ends = np.full(total, RUNNING)  # the last step of the same episode
        self.parts = np.arange(num_envs) * self.num_rows  # the first row of each part
        self.heads = self.parts - 1  # the row of the present observation
        self.begun = self.parts.copy()  # the first row of each running episode
        self.filled = np.zeros(num_envs, dtype=np.int64)  # number of rows in use
        self._envs = np.arange(num_envs)
        rows = {"is_step": self.is_step, "begins": self.begins, "ends": self.ends}
        self._by_row = {**self.arrays, **rows}
        self._by_env = {"parts": self.parts, "heads": self.heads, "begun": self.begun}
        self._by_env["filled"] = self.filled

    def __len__(self) -> int:
        return int(np.count_nonzero(self.is_step))

    @property
    def obs_keys(self) -> list[str]:
        """The keys of the observations that it holds."""
        return list(self._obs)

    def begin(self, obs: Mapping[str, np.ndarray], envs: np.ndarray | None = None) -> None:
        """Store the first observations of episodes, ``{key: [N, ...]}``, in all environments or in
        those numbered ``envs`` ``[N]``. The episodes that ran in them are cut off."""
        envs = self._envs if envs is None else envs
        for env in envs:
            self._cut_off(env)
        self.begun[envs] = self.heads[envs] + 1
        self._observe(envs, obs)

    def record(
        self, actions: np.ndarray, stepped: Any, envs: np.ndarray | None = None
    ) -> np.ndarray:
        """Store a step of the environments: the actions ``[N, A]`` for the last observations, and
        their results. Returns its rows ``[N]``."""
        envs = self._envs if envs is None else envs
        rows = self.heads[envs]
        self.arrays["actions"][rows] = actions
        self.arrays["rewards"][rows] = stepped.rewards
        self.arrays["dones"][rows] = stepped.terminated
        self.is_step[rows] = stepped.is_step
        for env in envs[~stepped.is_step]:  # cut off the episode of a lost environment
            self._cut_off(env)
        for env in envs[stepped.terminated | stepped.truncated]:
            episode = slice(self.begun[env], self.heads[env] + 1)
            self.ends[episode] = self.heads[env]
            if "returns" in self.arrays:
                rewards, dones = (self.arrays[key][episode] for key in ("rewards", "dones"))
                found = returns_to_go(rewards, dones, np.array([len(rewards)]), self.discount)
                self.arrays["returns"][episode] = found
        for i, obs in stepped.final_obs.items():
            self._observe(envs[i : i + 1], {key: x[None] for key, x in obs.items()})
        if (begins := envs[stepped.begins]).size:
            self.begun[begins] = self.heads[begins] + 1
        self._observe(envs, stepped.obs)
        return rows

    def restart(self, envs: np.ndarray) -> None:
        """Continue at the beginning of full parts with the last frames; later rows stay."""
        frames = self.heads[envs][:, None] + np.arange(-self.num_before, 1)
        frames = np.maximum(frames, self.begun[envs][:, None])
        shown = {key: array[frames] for key, array in self._obs.items()}
        self.begun[envs] = self.parts[envs]
        for i in range(self.num_before + 1):
            self._write(envs, self.parts[envs] + i, {key: x[:, i] for key, x in shown.items()})

    def _observe(self, envs: np.ndarray, obs: Mapping[str, np.ndarray]) -> None:
        rows = self.heads[envs] + 1
        self._write(envs, rows, obs)
        is_full = rows - self.parts[envs] == self.num_rows - 1
        if is_full.any():
            for env in envs[is_full]:
                self._cut_off(env)
            self.restart(envs[is_full])

    def _cut_off(self, env: int) -> None:
        """End the running episode with its last step, as far as is known here."""
        self.ends[self.begun[env] : self.heads[env]] = self.heads[env] - 1

    def _write(self, envs: np.ndarray, rows: np.ndarray, obs: Mapping[str, np.ndarray]) -> None:
        for key, array in self._obs.items():
            array[rows] = obs[key]
        self.is_step[rows] = False
        if "returns" in self.arrays:
            self.arrays["returns"][rows] = -np.inf
        for ahead in range(1, self.num_before + 1):  # their earlier frames are overwritten
            self.is_step[np.minimum(rows + ahead, self.parts[envs] + self.num_rows - 1)] = False
        self.begins[rows], self.ends[rows] = self.begun[envs], RUNNING
        self.heads[envs] = rows
        self.filled[envs] = np.maximum(self.filled[envs], rows - self.parts[envs] + 1)

    def choose(self, uniform: Tensor) -> Tensor:
        """Choose a filled row, a step or not, for each number ``[B]`` in [0, 1), uniformly."""
        total = int(self.filled.sum())
        chosen = (uniform * total).long()
        if self.num_envs == 1:
            return chosen
        bounds = np.cumsum(self.filled)
        part = torch.bucketize(chosen, torch.from_numpy(bounds), right=True)
        return chosen + torch.from_numpy(self.parts + self.filled - bounds)[part]

    def state(self) -> dict[str, Any]:
        """Return all that it holds, as tensors."""
        parts = [slice(p, p + n) for p, n in zip(self.parts, self.filled, strict=True)]
        rows = {key: np.concatenate([x[p] for p in parts]) for key, x in self._by_row.items()}
        return {
            "rows": {key: torch.from_numpy(x) for key, x in rows.items()},
            "envs": {key: torch.from_numpy(x.copy()) for key, x in self._by_env.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        # In a longer training, parts have more rows than when the state was saved.
        shift = self.parts - state["envs"]["parts"].numpy()
        for key, array in self._by_env.items():
            array[:] = state["envs"][key].numpy() + shift * (key != "filled")
        for key, array in self._by_row.items():
            values = np.split(state["rows"][key].numpy(), np.cumsum(self.filled)[:-1])
            for part, own in zip(self.parts, values, strict=True):
                array[part : part + len(own)] = own
        for part, num, by in zip(self.parts, self.filled, shift, strict=True):
            rows = slice(part, part + num)
            self.begins[rows] += by
            self.ends[rows] += by * (self.ends[rows] != RUNNING)


class ReplayWindows(Windows):
    """Windows over the present steps of a ``ReplayStore``, by the rows of their current steps."""

    def __init__(self, store: ReplayStore, window: Window):
        self._store = store
        self._begins, self._ends = torch.from_numpy(store.begins), torch.from_numpy(store.ends)
        self._heads = torch.from_numpy(store.heads)
        self._offsets = torch.arange(1 - window.frame_stack, window.seq_length)
        self._is_derived = False  # the row after the last step is a state of its own
        self.skipped_end = 0

    def __len__(self) -> int:
        return len(self._store)

    def _current(self, indices: Tensor) -> Tensor:
        return indices

    def _first(self, indices: Tensor) -> Tensor:
        return self._begins[indices]

    def _last_step(self, indices: Tensor) -> Tensor:
        ends = self._ends[indices]
        newest = self._heads[indices // self._store.num_rows] - 1
        return torch.where(ends == RUNNING, newest, ends)

    def _last_row(self, indices: Tensor) -> Tensor:
        return self._last_step(indices) + 1

    def after(self, rows: Tensor, indices: Tensor) -> Tensor:
        single = len(self._offsets) == 1 and rows.shape[1] == 1
        return rows + 1 if single else super().after(rows, indices)

    def choose(self, draws: Tensor) -> Tensor:
        return self._store.choose(draws)


class Replay(WindowDataset):
    """Draws batches of windows at random steps of a ``ReplayStore``, uniformly by default, in the
    form of a ``WindowDataset``.

    seed: the seed of the draws; the generator's state is part of ``state``.
    demos: recorded steps, which are the share ``demo_share`` of each batch (``None``: their share
        of all steps). ``is_demo`` ``[B, 1]`` in a batch marks them.
    priorities: probabilities of steps; batches then have ``weights`` ``[B]``.
    hindsight: replaces some desired goals by achieved ones, except in ``demos``.
    """

    store: ReplayStore

    def __init__(
        self,
        store: ReplayStore,
        obs_keys: Sequence[str],
        window: Window,
        seed: int = 0,
        demos: WindowDataset | None = None,
        demo_share: float | None = 0.0,
        priorities: Priorities | None = None,
        hindsight: Hindsight | None = None,
    ):
        self.generator = torch.Generator().manual_seed(seed)
        self.demos, self.demo_share = demos, demo_share
        self.priorities, self.hindsight = priorities, hindsight
        self.progress = 0.0  #: Progress of the training, 0 to 1.
        self._drawn = torch.empty(0)  # the rows of the last batch
        is_single = window.frame_stack == window.seq_length == 1
        keys = [key for key in store.columns if not key.startswith("obs/")]
        super().__init__(store, obs_keys, keys, window, not is_single)

    def make_windows(self) -> None:
        self._derived = set(self.obs_keys)
        self._windows = ReplayWindows(self.store, self.window)

    def batches(self, num: int, batch_size: int) -> Iterator[dict[str, Any]]:
        """Draw ``num`` batches; small ones are gathered together and split."""
        together = 1
        if self.priorities is None:  # priorities change with each batch
            steps = self.window.frame_stack + self.window.seq_length - 1
            row_bytes = sum(x[0].nbytes for x in self.store.arrays.values())
            together = num_gathered(2 * batch_size * steps * row_bytes)
        while num > 0:
            yield self.draw(min(num, together), batch_size)
            num -= together

    def draw(self, num: int, batch_size: int) -> dict[str, Any]:
        """Draw ``num`` batches as one, each with its demonstrations after the replay's steps."""
        num_demos = self._num_demos(batch_size)
        num_steps = batch_size - num_demos
        self._drawn = torch.empty(0)
        taken = self._take(num * num_steps) if num_steps else None
        if self.demos is None or not num_demos:
            return taken or {}
        recorded = self._draw_demos(self.demos, num * num_demos)
        if self.priorities is not None:
            recorded["weights"] = torch.ones(num * num_demos)
        if taken is None:
            return recorded

        def mix(taken: Tensor, recorded: Tensor) -> Tensor:
            parts = (x.unflatten(0, (num, -1)) for x in (taken, recorded.to(taken.device)))
            return torch.cat([*parts], dim=1).flatten(0, 1)

        return map_leaves(mix, taken, recorded)

    def _take(self, num: int) -> dict[str, Any]:
        if not self.store.is_step.any():
            raise ValueError("the replay holds no step yet; collect some before learning")
        weights = {}
        if self.priorities is None:
            rows = self.steps(num)
        else:
            rows, weights["weights"] = self._draw_by_priority(num, self.priorities)
            self._drawn = rows
        batch = self._gather(self, rows)
        if self.hindsight is not None:
            draws = torch.rand(len(rows), 2, generator=self.generator, dtype=torch.float64)
            self.hindsight.relabel(batch, self.store.columns, self._windows, rows, draws)
        return batch | weights

    def _draw_by_priority(self, num: int, priorities: Priorities) -> tuple[Tensor, Tensor]:
        while True:
            uniform = torch.rand(num, generator=self.generator, dtype=torch.float64)
            rows, weights = priorities.draw(uniform, len(self.store), self.progress)
            stale = ~self.store.is_step[rows.numpy()]
            if not stale.any():
                return rows, weights
            priorities.enter(rows.numpy()[stale], False)  # these rows were overwritten

    def learned(self, errors: Tensor) -> None:
        """Update priorities by the absolute errors ``[B]`` of the last batch."""
        if self.priorities is not None and len(self._drawn):
            own = errors[: len(self._drawn)].cpu().numpy()
            self.priorities.learn(self._drawn.numpy(), own)

    def _num_demos(self, batch_size: int) -> int:
        if self.demos is None:
            return 0
        if self.demo_share is not None:
            return round(self.demo_share * batch_size)
        num = len(self.demos)
        return ceil(batch_size * num / (num + len(self.store)))

    def _draw_demos(self, demos: WindowDataset, num: int) -> dict[str, Any]:
        """Draw ``num`` recorded steps."""
        shown = torch.randint(len(demos), (num,), generator=self.generator)
        return self._gather(demos, shown.to(demos.device))

    def _gather(self, data: WindowDataset, indices: Tensor) -> dict[str, Any]:
        batch = data.get_batch(indices)
        if self.demos is not None:
            batch["is_demo"] = torch.full((len(indices), 1), float(data is self.demos))
        return batch

    def steps(self, num: int) -> Tensor:
        """Draw the rows ``[num]`` of steps."""
        is_step = torch.from_numpy(self.store.is_step)
        rows = self._rows(num)
        while True:
            wrong = (~is_step[rows]).nonzero()[:, 0]
            if not len(wrong):
                return rows
            rows[wrong] = self._rows(len(wrong))

    def _rows(self, num: int) -> Tensor:
        return self.store.choose(torch.rand(num, generator=self.generator, dtype=torch.float64))

    def begin(self, obs: Mapping[str, np.ndarray], envs: np.ndarray | None = None) -> None:
        self.store.begin(obs, envs)

    def record(self, actions: np.ndarray, stepped: Any, envs: np.ndarray | None = None) -> None:
        rows = self.store.record(actions, stepped, envs)
        if self.priorities is not None:
            self.priorities.enter(rows, stepped.is_step)

    def state(self) -> dict[str, Any]:
        own = {} if self.priorities is None else {"priorities": self.priorities.state()}
        return {"generator": self.generator.get_state(), **self.store.state(), **own}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.store.restore(state)
        if self.priorities is not None:
            self.priorities.restore(state["priorities"])


def bytes_needed(num_envs: int, capacity: int, columns: Columns) -> int:
    """Estimate the memory that a ``ReplayStore`` takes when it is full."""
    by_row = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in columns.values())
    return (capacity + num_envs) * (by_row + 41)  # rewards, dones, bookkeeping, priorities
