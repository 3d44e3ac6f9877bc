"""Agents that act in environments by an algorithm: numpy in, numpy out."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from offrl.algos.base import Seen
from offrl.algos.shared.engine import Engine
from offrl.algos.shared.masks import ACTION_MASK, masked
from offrl.assembly.spaces import clipped
from offrl.tree import map_leaves

Observations = Mapping[str, np.ndarray]  # of one environment, or {key: [N, ...]} of several
Obs = Observations | np.ndarray


class BaseAgent:
    """Acts in environments by an algorithm: ``predict`` chooses the best actions, ``sample``
    actions to learn from, and ``learn`` makes an update.

    Observations are those of one environment, ``[...]``, or of several, ``[B, ...]``, and actions
    are ``[A]`` or ``[B, A]``, as environments take them; discrete ones are integers, without ``A``.
    offrl's policies also take dicts, ``{key: [...]}`` or ``{key: [B, ...]}``; frames are stacked
    for them.

    alg: An ``Algorithm``.
    obs_ndim: The number of dimensions of an observation of one environment.
    """

    num_steps = 0  #: The number of actions of ``sample`` so far.
    _obs_ndim = 1

    def __init__(self, alg: Any, obs_ndim: int = 1):
        self.alg, self._obs_ndim = alg, obs_ndim

    def predict(self, obs: Obs) -> np.ndarray:
        """Choose the best actions, deterministically: ``[A]`` for the observation ``[...]`` of one
        environment, ``[B, A]`` for ``[B, ...]`` of several, without ``A`` if they are discrete."""
        batch, is_one = self._batch(obs)
        with torch.no_grad():
            actions = self.alg.predict(batch).cpu().numpy()
        return actions[0] if is_one else actions

    def sample(self, obs: Obs) -> np.ndarray:
        """Choose actions to learn from, by default the best ones, in the shapes of ``predict``. A
        subclass that overrides it must update ``num_steps``."""
        self.num_steps += 1 if np.asarray(obs).ndim == self._obs_ndim else len(obs)
        return self.predict(obs)

    def learn(self, data: Mapping[str, Any]) -> dict[str, float]:
        """Make one update from a batch of arrays or tensors. Returns numbers for the log.

        An algorithm of offrl's takes ``obs`` and ``next_obs`` ``{key: [B, T, ...]}``, ``actions``
        ``[B, T, A]`` (discrete ones are one-hot), ``rewards`` and ``dones`` ``[B, T]``, or those of
        them that it reads (``NEEDS``).
        """
        info = self.alg.learn(map_leaves(torch.as_tensor, data))
        return {name: float(value) for name, value in info.items()}

    def update(self, batch: Mapping[str, Any], epoch: int = 1) -> dict[str, float]:
        """Make one update from a batch that the trainer has processed."""
        return self.learn(batch)

    def rewarded(self, stepped: Any) -> Any:
        """Return the results of a step (``Stepped``) with the rewards to learn from."""
        return stepped

    def remembered(self, begins: np.ndarray | None) -> Any:
        """Return a policy's recurrent state, ``[N, ...]``, zero where episodes ``begins``."""

    def serialize(self) -> dict[str, Any]:
        """Return its state between two steps, as tensors and numbers."""
        return {"num_steps": self.num_steps}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        """Restore what ``serialize`` returned."""
        self.num_steps = state["num_steps"]

    def _batch(self, obs: Obs) -> tuple[Any, bool]:
        array = np.asarray(obs)
        is_one = array.ndim == self._obs_ndim
        if array.dtype == np.float64:  # networks are float32
            array = array.astype(np.float32)
        return torch.from_numpy(array[None] if is_one else array), is_one


class PolicyAgent(BaseAgent):
    """Acts by one of offrl's policies. It keeps the last frames of its environments, and the
    policy's recurrent state in each.

    action_space: that of one environment.
    """

    def __init__(self, alg: Any, action_space: gymnasium.Space):
        super().__init__(alg)
        self._space = action_space
        self._engine = Engine(alg)
        self._obs_ndims = {key: len(o.shape) for key, o in alg.obs_spec.groups["obs"].items()}
        self._num_frames = alg.global_config.train.frame_stack
        self.forget()

    def forget(self) -> None:
        """Forget the frames and states of all environments."""
        self._frames: dict[str, np.ndarray] = {}  # [N, num_frames, ...]
        self.memory: Any = None  #: The recurrent state, ``[N, ...]``.
        self._sampled: tuple[int, Any, Any] = 0, {}, None  # number, frames and memory

    def predict(self, obs: Obs) -> np.ndarray:
        batch, is_one = self._batch(obs)
        for key, x in batch.items():
            if not x.isfinite().all():
                raise ValueError(f"predict: the observation {key!r} is NaN or infinite")
        if self._num_frames > 1:
            batch = {k: torch.stack([x] * self._num_frames, dim=1) for k, x in batch.items()}
        actions = self._as_taken(self.alg.predict(batch))
        return actions[0] if is_one else actions

    def sample(self, obs: Obs) -> np.ndarray:
        """Choose actions to learn from, and count the steps. Frames and recurrent states of these
        episodes are kept from call to call, apart from those of the trainer's environments, until
        the number of observations changes or ``forget`` is called."""
        batch, is_one = self._batch(obs)
        seen = {key: x.numpy() for key, x in batch.items()}
        num = len(next(iter(seen.values())))
        kept, before = (self._frames, self.memory), self._sampled
        self._frames, self.memory = before[1:] if before[0] == num else ({}, None)
        _, actions = self.explore(seen)
        self._sampled = num, self._frames, self.memory
        self._frames, self.memory = kept
        return actions[0] if is_one else actions

    def learn(self, data: Mapping[str, Any]) -> dict[str, float]:
        self._set_to_train()
        actions = data.get("actions")
        if actions is not None and np.ndim(actions) != 3:
            raise ValueError(
                f"learn: the actions have the shape {[*np.shape(actions)]}; batches have a time, "
                "actions [B, T, A] and observations [B, T, ...] (discrete actions are one-hot)"
            )
        return super().learn(data)

    def update(self, batch: Any, epoch: int = 1) -> dict[str, float]:
        """Make one update from a batch of ``process_batch_for_training``."""
        self._set_to_train()
        info = self._engine.step(batch, epoch, is_raw=False)
        return {name: float(value) for name, value in info.items()}

    def explore(
        self, obs: Observations, begins: np.ndarray | None = None, at_random: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose actions for observations of its environments, ``{key: [N, ...]}``. Returns them as
        the policy learns from them, ``[N, A]``, and as the environments take them.

        begins: ``[N]``, true where episodes begin; ``None``: only where it has no frames yet.
        at_random: draw actions uniformly, without the policy.
        """
        self._set_to_train()
        num = len(next(iter(obs.values())))
        seen = {k: torch.from_numpy(x) for k, x in self._last_frames(obs, begins).items()}
        self.memory = self.remembered(begins)
        with torch.no_grad():
            if at_random:
                action = self._random_action(num, seen)
            else:
                action, self.memory = self.choose(seen)
            raw = self._as_taken(self.alg.raw_action(action))
        self.num_steps += num
        return action.cpu().numpy(), raw

    def choose(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Choose actions ``[N, A]`` from the last frames, as the policy explores. Returns them and
        the recurrent state."""
        return self.alg.explore(Seen(seen, state=self.memory, num_steps=self.num_steps))

    def _set_to_train(self) -> None:
        """Put the networks into training mode, as ``predict`` and evaluations leave it."""
        if not (self.alg.nets.training or self.alg.rests):
            self.alg.set_train()

    def remembered(self, begins: np.ndarray | None) -> Any:
        """Return the recurrent state ``[N, ...]``, zero where episodes begin."""
        if begins is None or self.memory is None or not begins.any():
            return self.memory
        rows = torch.from_numpy(np.flatnonzero(begins)).to(self.alg.device)
        return map_leaves(lambda x: x.index_fill(0, rows, 0), self.memory)

    def _last_frames(self, obs: Observations, begins: np.ndarray | None) -> dict[str, np.ndarray]:
        """Append observations; return the last frames, ``{key: [N, num_frames, ...]}``."""
        obs = {key: obs[key] for key in self._seen_keys(obs)}
        if self._num_frames == 1:
            return {key: x[:, None] for key, x in obs.items()}
        for key, x in obs.items():
            stack = self._frames.get(key)
            if stack is None or stack[:, 0].shape != x.shape:
                stack = np.stack([x] * self._num_frames, axis=1)
            stack = np.concatenate([stack[:, 1:], x[:, None]], axis=1)
            if begins is not None:
                stack[begins] = x[begins, None]
            self._frames[key] = stack
        return self._frames

    def _seen_keys(self, obs: Mapping[str, Any]) -> list[str]:
        """List the keys that the policy sees in an observation, and that of action masks."""
        return [*self._obs_ndims, *([ACTION_MASK] if ACTION_MASK in obs else [])]

    def _random_action(self, num: int, seen: Mapping[str, Tensor]) -> Tensor:
        if self.alg.is_discrete:
            index = torch.randint(self.alg.ac_dim, (num,))
            if ACTION_MASK in seen:
                index = masked(torch.rand(num, self.alg.ac_dim), seen).argmax(1)
            return torch.nn.functional.one_hot(index, self.alg.ac_dim).float().to(self.alg.device)
        return (torch.rand(num, self.alg.ac_dim) * 2 - 1).to(self.alg.device)

    def _as_taken(self, actions: Tensor) -> np.ndarray:
        return clipped(actions.cpu().numpy(), self._space)

    def _batch(self, obs: Obs) -> tuple[dict[str, Tensor], bool]:
        named = {key: torch.as_tensor(np.asarray(x)) for key, x in self.alg.named(obs).items()}
        is_one = all(key in named and named[key].ndim == n for key, n in self._obs_ndims.items())
        shapes = {key: x.shape if is_one else x.shape[1:] for key, x in named.items()}
        self.alg.obs_spec.check_shapes(shapes, "obs")
        keys = self._seen_keys(named)
        return {key: named[key][None] if is_one else named[key] for key in keys}, is_one

    def serialize(self) -> dict[str, Any]:
        frames = {key: torch.from_numpy(x.copy()) for key, x in self._frames.items()}
        return super().serialize() | {"frames": frames, "memory": self.memory}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        super().deserialize(state)
        self._frames = {key: x.numpy().copy() for key, x in state["frames"].items()}
        self.memory = map_leaves(lambda x: x.to(self.alg.device), state["memory"])
