"""Windows over a store of steps: index arithmetic, and batches that are gathered by it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from offrl.data.goals import Goals
from offrl.data.steps import StepStore, ranges
from offrl.tree import map_leaves

ANY_LATER = Goals("future_uniform")
# The size of batches that are gathered together: the call for each observation takes longer than
# copying a small batch's rows.
GATHERED_BYTES = 2**22


def num_gathered(batch_bytes: int) -> int:
    """Count how many batches of that size are gathered as one, which is then split."""
    return max(1, GATHERED_BYTES // batch_bytes)


class Window(NamedTuple):
    """``T = frame_stack - 1 + seq_length`` steps. Padding repeats the first step of a demonstration
    (``pad_frame_stack``) or its last (``pad_seq_length``); without it such windows are left out."""

    frame_stack: int = 1
    seq_length: int = 1
    pad_frame_stack: bool = True
    pad_seq_length: bool = True


class Windows:
    """Windows over the first ``seen`` of demonstrations' ``lengths`` steps from ``first_rows`` on.

    is_derived: the state after a step is the next row, so that the last step follows itself.
    """

    def __init__(
        self,
        first_rows: np.ndarray,
        lengths: np.ndarray,
        seen: np.ndarray,
        window: Window,
        is_derived: bool,
    ):
        self._is_derived = is_derived
        frame_stack, seq_length, pad_frame_stack, pad_seq_length = window
        skipped_start = 0 if pad_frame_stack else frame_stack - 1
        self.skipped_end = 0 if pad_seq_length else seq_length - 1
        counts = seen - skipped_start - self.skipped_end
        self.counts = np.where(seen == 0, 0, counts)  # per demonstration; too short if below 1
        counts = np.maximum(self.counts, 0)
        self._start = torch.from_numpy(ranges(first_rows + skipped_start, counts))
        self._begin = torch.from_numpy(np.repeat(first_rows, counts))
        self._last = torch.from_numpy(np.repeat(first_rows + seen - 1, counts))
        self._end = torch.from_numpy(np.repeat(first_rows + lengths - 1, counts))
        self._offsets = torch.arange(1 - frame_stack, seq_length)

    def __len__(self) -> int:
        return len(self._start)

    def to(self, device: torch.device | str) -> None:
        for name in ("_start", "_begin", "_last", "_end", "_offsets"):
            setattr(self, name, getattr(self, name).to(device))

    # A window's own rows, ``[B]`` each: of its current step, of the first step of its
    # demonstration, of the last one that may be seen, and of the last row.

    def _current(self, indices: Tensor) -> Tensor:
        return self._start[indices]

    def _first(self, indices: Tensor) -> Tensor:
        return self._begin[indices]

    def _last_step(self, indices: Tensor) -> Tensor:
        return self._last[indices]

    def _last_row(self, indices: Tensor) -> Tensor:
        return self._end[indices]

    def steps(self, indices: Tensor) -> Tensor:
        """Return the rows of windows ``[B, T]`` unpadded, maybe beyond the demonstration."""
        return self._current(indices)[:, None] + self._offsets

    def rows(self, indices: Tensor) -> Tensor:
        """Return the rows of windows ``[B, T]``, padded."""
        steps = self.steps(indices)
        if len(self._offsets) == 1:  # single steps need no padding
            return steps
        begin, last = self._first(indices)[:, None], self._last_step(indices)[:, None]
        return torch.minimum(torch.maximum(steps, begin), last)

    def after(self, rows: Tensor, indices: Tensor) -> Tensor:
        """Return the rows ``[B, T]`` that follow; a demonstration's last step follows itself."""
        return torch.minimum(rows + 1, self._last_row(indices)[:, None])

    def starting_after(self, rows: Tensor, indices: Tensor) -> Tensor:
        """Return the rows of the steps after ``rows``; -1 at an end."""
        return torch.where(rows < self._last_step(indices)[:, None], rows + 1, -1)

    def before(self, rows: Tensor, indices: Tensor, num: int) -> Tensor:
        """Return ``num`` rows up to ``rows`` ``[B, 1]``, padded by the first: ``[B, num]``."""
        earlier = rows + torch.arange(1 - num, 1, device=rows.device)
        return torch.maximum(earlier, self._first(indices)[:, None])

    def current(self, indices: Tensor) -> Tensor:
        """Return the row ``[B, 1]`` of the current step of windows."""
        return self._current(indices)[:, None]

    def steps_left(self, indices: Tensor) -> Tensor:
        """Count the steps ``[B]`` from the current one to the last of its demonstration whose next
        state is stored; if states are next rows, that excludes the end."""
        last = self._last_step(indices)
        last = torch.minimum(last, self._last_row(indices) - 1) if self._is_derived else last
        return (last - self._current(indices) + 1).clamp(min=1)

    def goal(self, indices: Tensor) -> Tensor:
        """Return the row ``[B, 1]`` of the last step that is the current one of a window."""
        return self._last_step(indices)[:, None] - self.skipped_end

    def choose(self, draws: Tensor) -> Tensor:
        """Choose a window ``[B]`` for each of ``draws`` ``[B]`` in [0, 1), all equally likely."""
        return (draws * len(self)).long()


class WindowDataset(Dataset):
    """Windows of ``T`` steps over a ``StepStore``.

    Item ``i`` is a nested dict of numpy arrays: ``obs/KEY`` and ``next_obs/KEY`` ``[T, ...]``,
    ``goal_obs/KEY`` ``[...]``, every dataset key ``[T, ...]`` and ``pad_mask`` ``[T, 1]``, true for
    steps of the demonstration. ``get_batch`` gives many windows at once; none is kept in memory.

    goals: the choice of goals, or ``None`` if there are none. With the mode ``"last"`` the goal is
        the last ``next_obs`` (of the last window's first step if sequences are not padded). If they
        ``are_rewarded``, ``rewards`` and ``dones`` are those of reaching the goal: 0 and true at a
        step that starts in the goal (the same row), -1 and false at others. If the goal is the end
        of a demonstration, in which no step starts, the last step is done.
    subgoal_steps: ``k`` adds observations for hierarchies (HIQL: Park et al., 2023,
        arXiv:2307.11949, appendix C): ``subgoal_obs/KEY`` ``[...]``, ``k`` steps ahead, or the end
        if that is nearer; ``high_goal_obs/KEY`` ``[...]``, any later state; and
        ``waypoint_obs/KEY`` ``[frame_stack, ...]``, ``k`` steps towards that, or itself if it is
        nearer.
    obs_steps: the steps of a window, from the first on, of which ``obs`` and ``next_obs`` are
        taken. ``None``: all.
    """

    def __init__(
        self,
        store: StepStore,
        obs_keys: Iterable[str],
        dataset_keys: Iterable[str],
        window: Window,
        get_pad_mask: bool = False,
        goals: Goals | None = None,
        load_next_obs: bool = True,
        subgoal_steps: int | None = None,
        obs_steps: int | None = None,
    ):
        self.store = store
        self.obs_keys = tuple(sorted(obs_keys))
        self.dataset_keys = tuple(dict.fromkeys(dataset_keys))
        self.window = window
        self.get_pad_mask = get_pad_mask
        self.goals = goals
        self.load_next_obs = load_next_obs
        self.subgoal_steps = subgoal_steps
        self.obs_steps = obs_steps
        self.make_windows()

    def make_windows(self) -> None:
        """Make the windows of what the store holds."""
        stored = self.store.columns
        self._derived = {key for key in self.obs_keys if f"next_obs/{key}" not in stored}
        steps = self.store.first_rows, self.lengths, self._seen()
        self._windows = Windows(*steps, self.window, bool(self._derived))
        self._windows.to(self.device)

    def _seen(self) -> np.ndarray:
        """Count the steps of each demonstration whose next state is known. Without ``next_obs``
        that excludes the last step, unless it terminates."""
        if not (self.load_next_obs and self._derived):
            return self.lengths
        if "dones" not in self.store.columns or (self.goals and self.goals.are_rewarded):
            return self.lengths - 1  # the task's end does not end these episodes
        last = torch.from_numpy(self.store.first_rows + self.lengths - 1).to(self.device)
        dones = self.store.columns["dones"].take(last).cpu().numpy()
        return self.lengths - (dones.reshape(-1) == 0)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def lengths(self) -> np.ndarray:
        """The number of steps of each demonstration."""
        return self.store.lengths

    @property
    def n_demos(self) -> int:
        """The number of demonstrations."""
        return len(self.lengths)

    @property
    def obs_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each observation at one step, as it is stored."""
        return {key: self.store.columns[f"obs/{key}"].shape for key in self.obs_keys}

    @property
    def nbytes(self) -> int:
        """The bytes that the steps take in memory."""
        return self.store.nbytes

    @property
    def device(self) -> torch.device:
        """The device of the steps, and so of the batches."""
        return self.store.device

    @property
    def is_streamed(self) -> bool:
        """True if some of the data is read from files for each batch."""
        return any(column.is_streamed for column in self.store.columns.values())

    def to(self, device: torch.device | str) -> "WindowDataset":
        """Move the steps to the device on which batches are used."""
        self.store = self.store.to(device)
        self._windows.to(device)
        return self

    @property
    def num_draws(self) -> int:
        """The number of random numbers that choose a window's goals in ``get_batch``."""
        own = self.goals.num_draws if self.goals else 0
        return own + (ANY_LATER.num_draws if self.subgoal_steps else 0)

    def get_batch(self, indices: Tensor, draws: Tensor | None = None) -> dict[str, Any]:
        """Gather the windows ``indices`` ``[B]`` as one nested dict of tensors ``[B, T, ...]``.

        draws: ``[B, num_draws]`` in [0, 1), which choose goals; ``None``: torch draws them.
        """
        windows, columns = self._windows, self.store.columns
        rows = windows.rows(indices)
        seen = rows[:, : self.obs_steps]
        batch: dict[str, Any] = {key: columns[key].take(rows) for key in self.dataset_keys}
        batch["obs"] = {key: columns[f"obs/{key}"].take(seen) for key in self.obs_keys}
        if self.load_next_obs:
            batch["next_obs"] = self._next_obs(seen, indices)
        if draws is None:
            draws = torch.rand(len(indices), self.num_draws, dtype=torch.float64)
        draws = draws.to(self.device)
        if self.goals:
            batch["goal_obs"], starting, ending = self._goals(self.goals, indices, draws)
            if self.goals.are_rewarded:
                batch["rewards"] = (rows == starting).float() - 1
                batch["dones"] = ((rows == starting) | (rows == ending)).float()
        if self.subgoal_steps:
            batch |= self._subgoals(self.subgoal_steps, indices, draws[:, -ANY_LATER.num_draws :])
        if self.get_pad_mask:
            batch["pad_mask"] = (rows == windows.steps(indices))[..., None]
            for group in {"obs", "next_obs"} & batch.keys():
                batch[group]["pad_mask"] = batch["pad_mask"][:, : self.obs_steps]
        return batch

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        batch = self.get_batch(torch.tensor([index % len(self)], device=self.device))
        return map_leaves(lambda x: x[0].cpu().numpy(), batch)

    def _choose_goals(
        self, goals: Goals, indices: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Choose the step ``[B, 1]`` that each goal follows. Returns it, a window ``[B]`` of its
        demonstration, and for a mixture whether the goal is the current state ``[B, 1]``."""
        windows = self._windows
        if not goals.num_draws:
            return windows.goal(indices), indices, None
        ahead = goals.steps_ahead(draws, windows.steps_left(indices))
        rows = windows.current(indices) + ahead[:, None]
        if goals.mode != "mixture":
            return rows, indices, None
        is_current, is_random = goals.kinds(draws)
        others = torch.where(is_random, windows.choose(draws[:, 2]), indices)
        rows = torch.where(is_random[:, None], windows.current(others), rows)
        return rows, others, is_current[:, None]

    def _goals(
        self, goals: Goals, indices: Tensor, draws: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the goals ``{key: [B, ...]}``, the rows ``[B, 1]`` of steps that start in them
        and, for goals at ends, of steps that lead there; -1 for none."""
        rows, others, is_current = self._choose_goals(goals, indices, draws)
        goal, starting = self._next_obs(rows, others), self._windows.starting_after(rows, others)
        if is_current is not None:
            now = self._windows.current(indices)
            starting = torch.where(is_current, now, starting)
            for key, later in goal.items():
                mask = is_current.view(-1, *[1] * (later.ndim - 1))
                goal[key] = torch.where(mask, self.store.columns[f"obs/{key}"].take(now), later)
        return _without_time(goal), starting, torch.where(starting < 0, rows, -1)

    def _subgoals(self, steps: int, indices: Tensor, draws: Tensor) -> dict[str, Any]:
        now, left = self._windows.current(indices), self._windows.steps_left(indices)
        ahead = ANY_LATER.steps_ahead(draws, left)
        goal, on_the_way, near = (
            now + x[:, None]
            for x in (ahead, ahead.clamp(max=steps - 1), (left - 1).clamp(max=steps - 1))
        )
        return {
            "high_goal_obs": _without_time(self._next_obs(goal, indices)),
            "waypoint_obs": self._next_stack(on_the_way, indices),
            "subgoal_obs": _without_time(self._next_obs(near, indices)),
        }

    def _next_stack(self, rows: Tensor, indices: Tensor) -> dict[str, Tensor]:
        """Return the stack of frames that ends with the observation after ``rows`` ``[B, 1]``."""
        later = self._next_obs(rows, indices)
        num_before = self.window.frame_stack - 1
        if not num_before:
            return later
        before = self._windows.before(rows, indices, num_before)
        return {
            key: torch.cat([self.store.columns[f"obs/{key}"].take(before), x], dim=1)
            for key, x in later.items()
        }

    def _next_obs(self, rows: Tensor, indices: Tensor) -> dict[str, Tensor]:
        """Return the observations after ``rows``: the stored ones, or those of the next rows."""
        columns = self.store.columns
        later = self._windows.after(rows, indices) if self._derived else rows
        return {
            key: columns[f"obs/{key}"].take(later)
            if key in self._derived
            else columns[f"next_obs/{key}"].take(rows)
            for key in self.obs_keys
        }


def _without_time(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: x[:, 0] for key, x in obs.items()}
