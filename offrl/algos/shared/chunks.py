"""The base of algorithms whose policies predict chunks of actions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import model_validator

from offrl.acting.executor import Executor
from offrl.algos.base import Generators, Obs, PolicyAlgo, Seen
from offrl.config import AlgoConfig, NonNegative, Section, Steps
from offrl.lazy import Tensor, torch
from offrl.specs import GOAL
from offrl.tree import map_leaves


class HorizonConfig(Section):
    """``observation_horizon``, ``action_horizon`` and ``prediction_horizon``: To, Ta and Tp of Chi
    et al. (2023, arXiv:2303.04137)."""

    observation_horizon: Steps = 2
    """Number of latest observations that the policy sees. train.frame_stack is the same."""
    action_horizon: Steps = 8
    """Number of actions of a chunk that are played before the next chunk."""
    prediction_horizon: Steps = 16
    """Number of actions that are predicted, from the one of the first observation on, so that the
    first observation_horizon - 1 of them are past."""

    @property
    def chunk_length(self) -> int:
        """The number of predicted actions that are not past."""
        return self.prediction_horizon - self.observation_horizon + 1

    @model_validator(mode="after")
    def _can_be_played(self) -> "HorizonConfig":
        if self.action_horizon > self.chunk_length:
            raise ValueError(
                f"action_horizon ({self.action_horizon}) + observation_horizon "
                f"({self.observation_horizon}) - 1 is more than prediction_horizon "
                f"({self.prediction_horizon}), so that actions would be played that are not "
                "predicted; lower one of the first two"
            )
        return self


class ChunkConfig(AlgoConfig):
    """Base of the sections ``algo`` of algorithms whose policies predict chunks."""

    horizon: HorizonConfig = HorizonConfig()
    """Lengths of chunks."""
    temporal_ensemble: NonNegative | None = None
    """Average the actions that chunks predict for the same step, that of the i-th oldest with the
    weight exp(-temporal_ensemble * i). With an action_horizon of 1 all chunks that overlap count.
    null: play the newest chunk."""

    @property
    def obs_steps(self) -> int:
        """The steps of a window, from the first on, of which the policy sees observations."""
        return self.horizon.observation_horizon


class ChunkPolicy(PolicyAlgo):
    """A policy that predicts chunks.

    A subclass defines ``sample(obs, goal, generators)``: it maps prepared observations
    ``{key: [B, To, ...]}`` and goals, with a source of randomness per row, to actions that are
    normalised as in the dataset, ``[B, Tp, A]`` or only those that are not past. In ``update``,
    ``batch`` has observations of To steps, and ``actions`` and a ``pad_mask`` of Tp steps from the
    first of these on.
    """

    algo_config: ChunkConfig

    @classmethod
    def window(cls, algo_config: Any) -> dict[str, int]:
        own = algo_config.horizon
        return {"frame_stack": own.observation_horizon, "seq_length": own.prediction_horizon}

    def __init__(self, **kwargs: Any):
        from offrl.algos.shared.acting import ActingGraphs

        super().__init__(**kwargs)
        horizon, train = self.algo_config.horizon, self.global_config.train
        self.global_config.check_window("frame_stack", "horizon.observation_horizon")
        if train.seq_length < horizon.chunk_length:
            raise ValueError(
                f"train.seq_length: {train.seq_length} actions from the present one on, but "
                f"algo.horizon asks for {horizon.chunk_length} (prediction_horizon - "
                "observation_horizon + 1); set it to prediction_horizon"
            )
        self._graphs = ActingGraphs()
        self.executor = Executor(horizon.action_horizon, self.algo_config.temporal_ensemble)

    def inspect_lengths(self, lengths: Sequence[int]) -> None:
        length = self.algo_config.horizon.chunk_length
        if max(lengths) < length:
            raise ValueError(
                f"algo.horizon: a chunk has {length} actions (prediction_horizon - "
                f"observation_horizon + 1), and the longest demonstration {max(lengths)}; lower "
                "prediction_horizon"
            )

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        horizon = self.algo_config.horizon
        obs = map_leaves(lambda x: x[:, : horizon.observation_horizon], batch["obs"])
        keys = batch.keys() & {"actions", "pad_mask"}
        steps = {key: batch[key][:, : horizon.prediction_horizon] for key in keys}
        ready = super().process_batch_for_training({**batch, **steps, "obs": obs})
        if ready["pad_mask"] is not None:  # networks see whole chunks
            ready["actions"] = _nearest_recorded(ready["actions"], ready["pad_mask"])
        return ready

    # -- acting -----------------------------------------------------------------------------------

    def sample(self, *args: Any, **kwargs: Any) -> Tensor:
        """Predict actions, as a subclass defines it."""
        raise ValueError(f"{type(self).__name__}: define sample(obs, goal, generators)")

    def chunk(self, obs: Obs, goal: Obs | None = None, generators: Generators = None) -> Tensor:
        """Predict the actions from now on, ``[B, H, A]``, normalised as in the dataset, from raw
        observations ``{key: [B, To, ...]}``."""
        return self._graphs(self, self._chunk, {"obs": obs, "goal": goal}, generators)

    def _chunk(self, obs: Obs, goal: Obs | None, generators: Generators) -> Tensor:
        seen = self.prepare(obs, goal)
        predicted = self.sample(seen, seen.get(GOAL), generators)
        length = self.algo_config.horizon.chunk_length
        if predicted.ndim != 3 or predicted.shape[1] < length or predicted.shape[2] != self.ac_dim:
            raise ValueError(
                f"{type(self).__name__}: sample returned actions of shape "
                f"{list(predicted.shape)}; [B, Tp, A] is needed, here [{len(predicted)}, "
                f"{self.algo_config.horizon.prediction_horizon}, {self.ac_dim}]"
            )
        return predicted[:, -length:]

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        """Return the next actions ``[B, A]`` of the chunks that are played, and the state. Chunks
        that are due are predicted."""
        obs, goal, state, generators, _ = seen

        def predict(rows: Tensor) -> Callable[[], Tensor]:
            own = None if generators is None else [generators[i] for i in rows.tolist()]
            due, aim = (map_leaves(lambda x: x[rows.to(x.device)], x) for x in (obs, goal))
            return lambda: self.chunk(due, aim, own)

        num_envs = len(next(iter(obs.values())))
        actions, _, state = self.executor.step(num_envs, state, predict)
        return actions, state

    def _predict(self, seen: Seen) -> Tensor:
        chunks = self.chunk(seen.obs, None, seen.generators)
        return self.raw_action(chunks.flatten(0, 1)).unflatten(0, chunks.shape[:2])


def _nearest_recorded(actions: Tensor, mask: Tensor) -> Tensor:
    """Replace padded actions ``[B, T, A]`` by the nearest recorded ones."""
    steps = torch.arange(actions.shape[1], device=actions.device)
    known = mask[..., 0] > 0
    first = known.int().argmax(1, keepdim=True)
    last = first + known.sum(1, keepdim=True) - 1
    nearest = torch.maximum(torch.minimum(steps, last), first)
    return actions.gather(1, nearest[..., None].expand_as(actions))
