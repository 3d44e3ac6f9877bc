"""The base class of users' algorithms, which train a ``Model``, or the ``actor`` of a pipeline."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offrl.algos.shared.model import Model
from offrl.outputs import whole_file
from offrl.registry import PARTS
from offrl.tree import as_arrays, as_tensors


class Algorithm:
    """An update rule for a ``model`` that learns from batches, or for the ``actor`` of a pipeline
    (``offrl.online.Registers``) that learns from trajectories.

    In a pipeline ``prepare_data`` gets each trajectory, ``train_ready`` decides whether to
    ``train``, and ``checkpoint_ready`` whether to send weights to explorers and into a file.

    model_info: the arguments of the actor, ``model_para.actor`` of the file, with its
        ``model_name``.
    alg_config: ``alg_para.alg_config`` of the file.
    """

    model: Any
    actor: Any = None  #: The model of a pipeline.

    def __init__(
        self,
        model_info: Mapping[str, Any] | None = None,
        alg_config: Mapping[str, Any] | None = None,
    ):
        self.alg_config = {} if alg_config is None else alg_config
        #: Trajectories of ``prepare_data``, unless a subclass stores them elsewhere.
        self.trajectories: list[Mapping[str, Any]] = []
        if model_info is not None:
            name = model_info["model_name"]
            self.actor = PARTS["model"][name](model_info)
            needs = ("predict", "train", "get_weights", "set_weights")
            lacks = [method for method in needs if not hasattr(self.actor, method)]
            if lacks and not isinstance(self.actor, torch.nn.Module):
                raise ValueError(
                    f"{name}: it has no {lacks[0]}; a model is a torch.nn.Module, or has "
                    f"{', '.join(needs)}"
                )

    def predict(self, obs: Any) -> Any:
        """Choose the best actions, ``[B]`` or ``[B, A]``, for a batch of observations. With an
        ``actor``, return its prediction for one state; a module without ``predict`` is called."""
        if self.actor is None:
            return self.model.action(obs)
        if hasattr(self.actor, "predict"):
            return self.actor.predict(obs)
        call = self.actor.action if isinstance(self.actor, Model) else self.actor
        state = np.asarray(obs)
        kept = {"dtype": torch.float32} if state.dtype == np.float64 else {}
        device = next((x.device for x in self.actor.parameters()), None)
        with torch.no_grad():
            return call(torch.as_tensor(state, device=device, **kept)[None])[0].cpu().numpy()

    def learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one update from a batch, and return numbers for the log."""
        raise NotImplementedError(type(self).__name__)

    def sync_target(self) -> None:
        """Copy the networks' weights to their target networks, if there are any."""

    # -- in a pipeline ----------------------------------------------------------------------------

    def prepare_data(self, train_data: Mapping[str, Any], **kwargs: Any) -> None:
        """Store a trajectory, ``{key: [T, ...]}``, of an ``agent`` of an ``explorer``."""
        self.trajectories.append(train_data)

    def train_ready(self, total_count: int, **kwargs: Any) -> bool:
        """Say whether to train, after ``total_count`` trajectories."""
        return True

    def train(self, **kwargs: Any) -> Any:
        """Learn from stored trajectories. Returns the loss, a dict of numbers, or ``None``."""
        raise NotImplementedError(f"{type(self).__name__}: define train()")

    def checkpoint_ready(self, train_count: int, **kwargs: Any) -> bool:
        """Say whether to send weights and write a checkpoint, after ``train_count`` trainings."""
        return True

    def update_weights_map(
        self, agent_in_group: list[str], agent_in_env: list[str]
    ) -> Mapping[str, Any]:
        """Return whose weights agents of an environment use, ``{"agent_1": "agent_0"}``; other
        agents have their own. Empty: all share one algorithm. A value may also be a name of
        weights, ``{"prefix": ..., "name": ...}``, and so may the whole result, when it is asked for
        each agent alone (its name is then in both arguments). Agents with equal names share
        weights.

        agent_in_group: all agents that may have weights, ``["agent_0", "agent_1", ...]``.
        agent_in_env: those of an environment.
        """
        return {}

    def get_weights(self) -> Any:
        """Return the actor's weights: arrays, in dicts or lists."""
        if isinstance(self.actor, torch.nn.Module):
            return {name: x.cpu().numpy() for name, x in self.actor.state_dict().items()}
        return self.actor.get_weights()

    def set_weights(self, weights: Any) -> None:
        """Load weights of ``get_weights`` into the actor. ``ValueError`` if they do not fit."""
        if not isinstance(self.actor, torch.nn.Module):
            self.actor.set_weights(weights)
            return
        try:
            self.actor.load_state_dict({name: as_tensors(x) for name, x in weights.items()})
        except (AttributeError, RuntimeError, TypeError) as error:
            why = str(error).splitlines()[:2][-1].strip()  # torch has a line for each tensor
            name = type(self.actor).__name__
            raise ValueError(f"these weights are not those of this {name}: {why:.300}") from None

    def save(self, model_path: str | Path, model_index: int) -> Any:
        """Write a checkpoint into a folder, and return the names of its files."""
        path = Path(model_path) / f"actor_{model_index:06d}.pth"
        with whole_file(path) as partial, open(partial, "wb") as file:
            torch.save(_map_weights(as_tensors, self.get_weights()), file)
        return path.name

    def restore(self, model_name: str | Path | None = None, model_weights: Any = None) -> None:
        """Go on from a file that ``save`` wrote, or from weights."""
        if model_name is None:
            self.set_weights(model_weights)
            return
        path = Path(model_name).expanduser()
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such file; name one of a run's models/") from None
        except Exception as error:
            why = " ".join(str(error).split())
            raise ValueError(f"{path}: no file of weights, or damaged ({why:.200})") from None
        try:
            self.set_weights(_map_weights(as_arrays, content))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from None


def _map_weights(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf of nested dicts and lists."""
    if isinstance(tree, Mapping):
        return {key: _map_weights(function, x) for key, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_map_weights(function, x) for x in tree]
    return function(tree)
