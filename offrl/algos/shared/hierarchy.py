"""Algorithms made of others, which are trained side by side on the same batches."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from offrl.algos.base import Algo, PlannerAlgo
from offrl.config import AlgoConfig, OptimConfig
from offrl.lazy import Tensor
from offrl.normalize import Stats
from offrl.registry import ALGOS
from offrl.specs import ObsSpec


class Composite(Algo):
    """``parts``, each with networks, optimizers and an update rule of its own.

    A subclass makes them in ``_make_parts``, with ``_part``. The first is trained first.
    """

    GROUPS = ("obs", "goal", "subgoal")
    LOG_NAMES: ClassVar[Mapping[str, str]]  #: The prefix of a part's names in the log.
    PLACES: ClassVar[Mapping[str, str]] = {}  #: Sections of parts under other names.

    parts: dict[str, Any]

    @property
    def optimizers(self) -> dict[str, Any]:
        return {
            f"{name}.{network}": optimizer
            for name, part in self.parts.items()
            for network, optimizer in part.optimizers.items()
        }

    def _create_networks(self) -> None:
        self.parts = self._make_parts()
        groups: dict[str, Any] = {}
        for name, part in self.parts.items():
            self.nets[name] = part.nets
            for group, keys in part.obs_spec.groups.items():
                if (name, group) != ("actor", "goal"):  # the planner provides the goal
                    groups[group] = dict(sorted((groups.get(group, {}) | keys).items()))
        self.obs_spec = ObsSpec(groups)

    def _make_parts(self) -> dict[str, Any]:
        raise NotImplementedError(type(self).__name__)

    def _part(
        self, name: str, algo_name: str, algo_class: type[Algo] | None = None, **groups: Any
    ) -> Any:
        """Make the part that ``algo.NAME`` and ``observation.NAME`` describe. ``groups`` of
        observations are in the place of those that the latter names."""
        place = self.PLACES.get(name, name)
        observation, section = self.global_config.observation[place], self.algo_config[place]
        own = {"algo_name": algo_name, "algo": section, "observation": observation}
        shapes = {k: x.shape for keys in self.obs_spec.groups.values() for k, x in keys.items()}
        with self._in_place(name):
            return (algo_class or ALGOS[algo_name](section)[0])(
                config=self.global_config.model_copy(update=own),
                obs_spec=ObsSpec({**ObsSpec.from_config(observation, shapes).groups, **groups}),
                ac_dim=self.ac_dim,
                device=self.device,
            )

    @contextmanager
    def _in_place(self, name: str) -> Iterator[None]:
        """Let a part's ``ValueError`` about ``algo`` or ``observation`` name its place there."""
        try:
            yield
        except ValueError as error:
            place = self.PLACES.get(name, name)
            said = re.sub(r"\b(algo|observation)\.", rf"\1.{place}.", str(error))
            raise ValueError(said) from None

    def _optim_params(self) -> dict[str, OptimConfig]:
        return {}  # the parts have their own

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        for name, part in self.parts.items():
            with self._in_place(name):
                part.inspect_data(values)

    def inspect_lengths(self, lengths: Sequence[int]) -> None:
        for name, part in self.parts.items():
            with self._in_place(name):
                part.inspect_lengths(lengths)

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._processed(name, batch) for name in self.parts}

    def _processed(self, name: str, batch: Mapping[str, Any]) -> dict[str, Any]:
        with self._in_place(name):
            return self.parts[name].process_batch_for_training(batch)

    def update(self, batch: dict[str, Any]) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for name, part in self.parts.items():
            own = part.train_on_batch(self._batch_of(name, batch), self.epoch, self.validates)
            info |= {f"{name}.{key}": value for key, value in own.items()}
        return info | {"loss": sum(info[f"{name}.loss"] for name in self.parts)}

    def _batch_of(self, name: str, batch: dict[str, Any]) -> dict[str, Any]:
        return batch[name]

    def graph_key(self) -> tuple[Any, ...]:
        return tuple(part.graph_key() for part in self.parts.values())

    def is_capturable(self) -> bool:
        return all(part.is_capturable() for part in self.parts.values())

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        logs: dict[str, float] = {}
        for name, part in self.parts.items():
            own = part.log_info(_of_part(name, info))
            logs |= {f"{self.LOG_NAMES[name]}/{key}": value for key, value in own.items()}
        return logs | {"Loss": sum(logs[f"{name}/Loss"] for name in self.LOG_NAMES.values())}

    def on_epoch_end(self, epoch: int) -> None:
        for part in self.parts.values():
            part.on_epoch_end(epoch)

    def set_train(self) -> None:
        super().set_train()
        for part in self.parts.values():
            part.set_train()

    def set_eval(self) -> None:
        super().set_eval()
        for part in self.parts.values():
            part.set_eval()

    @contextmanager
    def trained_weights(self) -> Iterator[None]:
        with ExitStack() as all_parts:
            for part in self.parts.values():
                all_parts.enter_context(part.trained_weights())
            yield

    # -- statistics and state ---------------------------------------------------------------------

    def set_statistics(self, obs: Stats, actions: Stats, subgoals: Stats | None = None) -> None:
        super().set_statistics(obs, actions)
        for part in self.parts.values():
            own = {"subgoals": subgoals} if isinstance(part, PlannerAlgo) else {}
            part.set_statistics(obs, actions, **own)

    def serialize(self) -> dict[str, Any]:
        whole = super().serialize()
        parts = {name: part.serialize() for name, part in self.parts.items()}
        for state in parts.values():
            del state["nets"]  # they are in those of the whole
        return {**whole, "parts": parts}

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        with self.trained_weights():
            super().deserialize(state, load_optimizers)
        for name, part in state.get("parts", {}).items():
            nets = _of_part(name, state["nets"])
            self.parts[name].deserialize({"nets": nets, **part}, load_optimizers)


def _of_part(name: str, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of a part, whose keys begin with its name, by the rest of these."""
    start = f"{name}."
    return {k.removeprefix(start): x for k, x in whole.items() if k.startswith(start)}


def set_unless_stated(
    observation: Any, stated: Mapping[str, Any], **groups: Mapping[str, list[str]]
) -> None:
    """Set groups of observations ``{modality: keys}``, except those that the config ``stated``."""
    for group, keys in groups.items():
        if group not in stated.get("modalities", {}):
            setattr(observation.modalities, group, keys)


def check_predicted(place: str, keys: Sequence[str], planner: Any) -> None:
    """Raise ``ValueError`` where another part is to see, at ``place``, ``keys`` that are no vectors
    among a planner's subgoals."""
    subgoals = planner.obs_spec.groups["subgoal"]
    vectors = [key for key, spec in subgoals.items() if not spec.is_image]
    for key in keys:
        if key not in vectors:
            raise ValueError(
                f"observation.{place}: names {key}, which is not among the vectors that the "
                f"planner predicts: {', '.join(vectors)} (modalities.subgoal)"
            )


def check_horizon(key: str, config: AlgoConfig, lengths: Sequence[int]) -> None:
    """Raise ``ValueError`` if ``config[key]`` is so long that all subgoals are ends of
    demonstrations."""
    if config[key] > max(lengths):
        raise ValueError(
            f"algo.{key}: {config[key]}, but the longest demonstration has {max(lengths)} steps, "
            "so that every subgoal would be its end; lower it"
        )
