"""Minari's datasets, which the package minari reads and writes."""

import copy
import json
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.demos import DemoArrays, Episodes
from offrl.data.formats import exchange
from offrl.data.formats.exchange import Conversion, StepType
from offrl.data.formats.hdf5 import located, open_hdf5
from offrl.data.storage import arrays_below
from offrl.lazy import needed
from offrl.links import file_in
from offrl.memory import check_memory
from offrl.outputs import check_space, whole_folder

MINARI = "minari:"  # prefix of the name of a Minari dataset
NOTES = "offrl"  # key in the metadata of datasets that offrl wrote
SMALLEST = 32  # pixels: Minari takes no smaller arrays for images


def minari_folder(name: str) -> Path:
    """Find the folder where Minari keeps a dataset, e.g. ``mujoco/hopper/medium-v0``."""
    try:
        return Path(_import().load_dataset(name).storage.data_path).resolve().parent
    except FileNotFoundError:
        words = f"not among Minari's datasets here; run: minari download {name}"
        raise FileNotFoundError(f"minari:{name}: {words}") from None


class MinariEpisodes(Episodes):
    """The episodes in a dataset's folder.

    An observation that is no dict is called ``flat``; of a dict, numeric arrays are used. ``dones``
    are the terminations, ``timeouts`` the truncations. Observations have one row more than steps,
    so that each step has its ``next_obs``.
    """

    layout = "Minari"

    def __init__(self, folder: Path):
        self.path = folder
        metadata, files = folder / "data/metadata.json", sorted((folder / "data").glob("*.hdf5"))
        for path in (metadata, *files):
            file_in(folder, f"data/{path.name}")
        if not metadata.exists():
            words = "but not of a Minari dataset: data/metadata.json is missing; copy it again"
            raise ValueError(f"{folder}: a folder, {words}")
        minari = _import()
        self.sizes: Counter[str] = Counter()  # unpacked sizes of episodes
        for path in files:
            with open_hdf5(path) as file, located(folder, path.name):
                for place, array in arrays_below(file.id):
                    self.sizes[place.split("/")[0]] += array.nbytes
        with located(folder, "data/metadata.json"):
            total = json.loads(metadata.read_text(encoding="utf-8"))["total_episodes"]
            if not 0 < total <= len(self.sizes):  # before Minari makes a list of them
                raise ValueError(f"total_episodes is {total}, but {len(self.sizes)} are there")
            self._dataset = minari.MinariDataset(folder / "data")
        text = self._dataset.storage.metadata.get(NOTES)
        self._notes = exchange.read_notes(folder, text) if text else None

    @property
    def env_args(self) -> dict[str, Any] | None:
        spec = self._dataset.env_spec
        if self._notes or spec is None:
            return super().env_args
        limit = {"max_episode_steps": spec.max_episode_steps} if spec.max_episode_steps else {}
        return {"env_name": spec.id, "type": 2, "env_kwargs": spec.kwargs | limit}

    def demos(self) -> list[str]:
        return [f"demo_{i}" for i in range(self._dataset.total_episodes)]

    @property
    def num_actions(self) -> int | None:
        """The number of ``Discrete`` actions, which are counted from 0; ``ValueError`` for actions
        that are neither these nor one vector of real numbers."""
        from gymnasium.spaces import Box, Discrete

        space = self._dataset.action_space
        if isinstance(space, Discrete) and space.start == 0:
            return int(space.n)
        is_vector = isinstance(space, Box) and len(space.shape) == 1 and space.dtype.kind == "f"
        if not is_vector and self._notes is None:  # else offrl derived the space from arrays
            raise ValueError(
                f"{self.path}: actions are {space}; one vector of real numbers (Box) or one "
                "discrete action that is counted from 0 (Discrete) is needed"
            )
        return None

    @property
    def left_out(self) -> dict[str, str]:
        """The observations that are no numeric arrays, such as categories, and their spaces."""
        from gymnasium.spaces import Box, Dict, MultiBinary

        space = self._dataset.observation_space
        spaces = space.spaces if isinstance(space, Dict) else {"flat": space}
        kinds = Box, MultiBinary
        return {f"obs/{k}": str(own) for k, own in spaces.items() if not isinstance(own, kinds)}

    def unread(self) -> list[str]:
        with located(self.path, "episode 0"):
            (episode,) = self._dataset.iterate_episodes([0])
        return [*self.left_out, *(["infos"] if episode.infos else [])]

    def trajectory(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        _ = self.num_actions  # refuses others
        number = int(demo.removeprefix("demo_"))
        check_memory(self.sizes[f"episode_{number}"], f"{self.path}: episode {number}")
        with located(self.path, f"episode {number}"):
            (episode,) = self._dataset.iterate_episodes([number])
            rows = {"actions": episode.actions, "rewards": episode.rewards}
            rows["dones"] = episode.terminations.astype(np.float32)
            rows["timeouts"] = episode.truncations.astype(np.float32)
            obs = episode.observations
            for key, values in (obs if isinstance(obs, dict) else {"flat": obs}).items():
                if f"obs/{key}" not in self.left_out:
                    rows |= {f"obs/{key}": values[:-1], f"next_obs/{key}": values[1:]}
            if len({len(values) for values in rows.values()}) > 1:
                raise ValueError(f"{self.path}: episode {number} has arrays of unequal lengths")
        known = rows.keys() if self._notes is None else self._notes["steps"].keys()
        return {k: v for k, v in rows.items() if k in known and (keys is None or k in keys)}


def read_minari(folder: Path) -> DemoArrays:
    """Read all episodes in a dataset's folder into memory."""
    with MinariEpisodes(folder) as episodes:
        check_memory(2 * episodes.sizes.total(), f"{folder}: all episodes")
        demos = [episodes.trajectory(demo) for demo in episodes.demos()]
        notes = {"env_args": episodes.env_args, "masks": episodes.masks()}
        notes |= {"num_actions": episodes.num_actions, "left_out": episodes.left_out}
    lengths = np.array([len(demo["rewards"]) for demo in demos])
    arrays = {key: np.concatenate([demo[key] for demo in demos]) for key in demos[0]}
    return DemoArrays(folder, arrays, lengths, notes)


def holds(key: str, step: StepType) -> bool:
    """Say whether Minari can store an array. It takes bytes for images, and stores JPEGs."""
    group, _, name = key.rpartition("/")
    if group in ("obs", "next_obs"):
        is_image = step.is_image and min(step.shape[:2]) >= SMALLEST
        return bool(name) and (is_image or step.dtype not in ("uint8", "bool"))
    return key in ("actions", "rewards", "dones", "timeouts")


@contextmanager
def writing(output: str, plan: Conversion) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make a function that adds an episode to a new dataset, which appears when all are written.

    output: a folder, or ``minari:NAME``, one among Minari's own.
    """
    minari = _import()
    from gymnasium.spaces import Dict
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    name, folder = _place(output)
    obs = {key: step for key, step in plan.steps.items() if key.startswith("obs/")}
    is_flat = list(obs) == ["obs/flat"]  # a vector, and no dict
    with whole_folder(folder) as partial, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about bounds, and precision that is not lost
        spaces = {key.removeprefix("obs/"): _space(step) for key, step in obs.items()}
        storage = MinariStorage.new(
            (partial / "data").absolute(),  # Minari does not find the files in another
            observation_space=spaces["flat"] if is_flat else Dict(spaces),
            action_space=_space(plan.steps["actions"]),
            env_spec=_spec(plan.env_args),
        )
        storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})

        def write(trajectory: Mapping[str, Any]) -> None:
            observations = {
                key.removeprefix("obs/"): np.append(
                    trajectory[key], exchange.next_observations(trajectory, key)[-1:], axis=0
                ).astype(step.dtype)
                for key, step in obs.items()
            }
            check_space(folder, 2 * sum(array.nbytes for array in observations.values()))
            episode = EpisodeBuffer(
                observations=observations["flat"] if is_flat else observations,
                actions=trajectory["actions"].astype(plan.steps["actions"].dtype),
                rewards=trajectory["rewards"].reshape(-1),
                terminations=exchange.as_booleans(trajectory, "dones"),
                truncations=exchange.timeouts(trajectory),
            )
            storage.update_episodes([episode])

        yield write
        notes = {NOTES: json.dumps(plan.notes()), "dataset_size": storage.get_size()}
        storage.update_metadata(notes)
    if output.startswith(MINARI):  # register the folders above as namespaces
        namespace, _, _ = parse_dataset_id(name)
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)


def _place(output: str) -> tuple[str, Path]:
    """Return a dataset's name, which must end with a version, and its folder."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage import get_dataset_path

    folder = Path(output).expanduser()
    name = output.removeprefix(MINARI) if output.startswith(MINARI) else folder.name
    for candidate in (name, f"{name}-v0"):
        try:
            parse_dataset_id(candidate)
        except (ValueError, TypeError):
            continue
        return candidate, get_dataset_path(candidate) if output.startswith(MINARI) else folder
    raise ValueError(f"{output}: {name!r} is no name for Minari; give one such as robots/lift-v0")


def _space(step: StepType) -> Any:
    from gymnasium.spaces import Box

    low, high = (0, 255) if step.dtype == "uint8" else (-np.inf, np.inf)
    if step.dtype.startswith("int"):
        low, high = np.iinfo(step.dtype).min, np.iinfo(step.dtype).max
    return Box(low, high, step.shape, np.dtype(step.dtype))


def _spec(env_args: Mapping[str, Any] | None) -> Any:
    """Make gymnasium's spec of an environment of gymnasium's, by which Minari builds it."""
    import gymnasium

    if not env_args or env_args.get("type") != 2:
        return None
    try:
        spec = copy.deepcopy(gymnasium.spec(env_args["env_name"]))
    except (gymnasium.error.Error, ModuleNotFoundError):
        return None
    kwargs = dict(env_args.get("env_kwargs") or {})
    spec.max_episode_steps = kwargs.pop("max_episode_steps", spec.max_episode_steps)
    spec.kwargs.update(kwargs)
    return spec


def _import() -> Any:
    return needed("minari", "minari", "Minari is missing")
