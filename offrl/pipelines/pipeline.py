"""A pipeline of a user's own parts: explorers act, an algorithm learns from their trajectories."""

import copy
import inspect
import math
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offrl.config.files import read_config_file
from offrl.config.pipeline import PipelineConfig
from offrl.faces.algorithm import Algorithm
from offrl.online.collector import EndedEpisodes
from offrl.online.explorer import Trajectory, Weights
from offrl.online.ray import broker_at
from offrl.online.trainer import summary_of
from offrl.pipelines.explorer import PipelineExplorer
from offrl.pipelines.registers import makers_of
from offrl.registry import did_you_mean, shown
from offrl.reports.records import Record, read_records
from offrl.reports.run import newest_run
from offrl.seeding import seed_everything
from offrl.training.loop import Loop
from offrl.training.run import RunFolder, note_changes, note_provenance
from offrl.tree import map_leaves

KEPT = 10  # newest checkpoints to keep of each algorithm
LAST = 20  # episodes whose mean return is the result of a training


class Pipeline(Loop):
    """Trains the parts that a config names, as a generator of log records; or evaluates them.
    Records are ``progress`` for each trajectory, ``collect`` (the episodes since the last one) and
    ``train`` for each training, and ``rollout`` for each evaluated episode.

    run: An earlier run to resume from its newest weights (``RunFolder.open``).
    config_file: The file of the config, which is copied into a new run folder.
    """

    WORK_RECORDS = ("collect", "train")

    def __init__(
        self,
        config: PipelineConfig,
        run: RunFolder | None = None,
        config_file: Path | None = None,
    ):
        super().__init__(run)
        self.config, self.config_file = config, config_file
        self.environments = {config.env_para.env_name: {}}
        note_provenance(config, None, run)
        if run is not None:
            given = read_records(run.metrics)[0]
            trained = (record["epoch"] for record in given if record["type"] == "train")
            self.epoch = max(trained, default=0)
            known = (record["step"] for record in given if self.has_given(record))
            self.step = max(known, default=0)
            note_changes(config, read_config_file(run.config_file), self.step)
        self.version = 0  #: The version of the weights: how often they were published.
        #: The folder of checkpoints; ``None``: not made yet.
        self.models: Path | None = None if run is None else run.models
        self.checkpoint: Path | None = None  #: The newest checkpoint.
        seed_everything(config.train.seed)
        make_algorithm, *_ = makers_of(config)
        alg = make_algorithm()
        self._owners = _checked_owners(alg, config.agent_para.names)
        first, *others = dict.fromkeys(self._owners.values())
        self.algs = {first: alg} | {name: make_algorithm() for name in others}
        trains = config.mode != "evaluate"
        if trains and type(alg).train is Algorithm.train:
            raise ValueError(f"alg_para.alg_name: {config.alg_para.alg_name} defines no train()")
        start = config.checkpoint
        if start is not None and (found := newest_run(Path(start).expanduser())):
            start = str(found / "models")
        if run is not None and any(path.is_file() for path in run.models.rglob("*")):
            start = str(run.models)
        if start is not None:
            folders = {x: self._folder(Path(start), x) for x in self.algs}
            was_trained = [name for name, folder in folders.items() if folder.exists()]
            for name in was_trained or self.algs:  # some may wait for data
                self.checkpoint = newest(folders[name])
                self.algs[name].restore(model_name=self.checkpoint)
        self._num_prepared = dict.fromkeys(self.algs, 0)
        self._num_trained = dict.fromkeys(self.algs, self.epoch)
        self._num_saved = dict.fromkeys(self.algs, self.epoch)
        self._files: dict[str, list[Path]] = {name: [] for name in self.algs}
        self.last: deque[Any] = deque(maxlen=LAST)  #: The last episodes, as ``Trajectory.ended``.
        self._ended: EndedEpisodes = []  # since the last training
        self._staleness: list[int] = []
        # Explorers of higher numbers evaluate.
        self._num_exploring = config.env_num if trains else 0
        make_explorer: Any = partial(PipelineExplorer, config, self._owners, self._num_exploring)
        num = config.env_num + (config.mode == "train_with_evaluate")
        self.broker = broker_at(config.distributed.address, make_explorer, num, self.epoch)

    def __repr__(self) -> str:
        name = self.config.alg_para.alg_name
        return f"Pipeline({name}, step {self.step} of {self.num_steps})"

    @property
    def num_steps(self) -> int:
        return self.config.max_steps

    @property
    def is_last(self) -> bool:
        return self.step >= self.num_steps

    @property
    def problems(self) -> list[str]:
        return self.broker.problems

    def close(self) -> None:
        self.broker.close()
        super().close()

    def _write_first(self, run: RunFolder) -> None:
        if self.config_file is not None:
            shutil.copy(self.config_file, run.path)

    # -- training ---------------------------------------------------------------------------------

    def _begin_epoch(self) -> list[str]:
        self.epoch -= 1  # an epoch begins with each training
        return [*self.WORK_RECORDS]

    def _work(self) -> Iterator[Record]:
        """Receive trajectories until a training is due, and train."""
        if not self.version:
            self._publish()
        while not self.is_last:
            self.interrupts.check()
            trajectory = self._receive()
            if trajectory.explorer >= self._num_exploring:
                if trajectory.ended:
                    yield self.record("rollout", summary_of(trajectory.ended))
                continue
            self._take_in(trajectory)
            yield self.record("progress", summary_of(self._ended))
            ready = [x for x, alg in self.algs.items() if alg.train_ready(self._num_prepared[x])]
            if ready:
                self.epoch += 1
                # Before the next trajectory, so that the record is of those that were learned from.
                self._logs = self._train(ready)
                return
        self._due.remove("train")

    def _finish(self, kind: str) -> Mapping[str, float]:
        if kind == "train":
            return self._logs
        logs = summary_of(self._ended) | {
            "Trajectories": len(self._staleness),  # since the last training
            "Staleness": float(np.mean(self._staleness)),  # versions by which weights were old
            "Lost_Explorers": len(self.broker.lost),
        }
        self._ended, self._staleness = [], []
        return logs

    def _receive(self) -> Trajectory:
        with self.interrupts.at_once():
            trajectory = self.broker.receive()
        if self._num_exploring and {*range(self._num_exploring)} <= self.broker.lost.keys():
            raise ChildProcessError("no explorer is left to learn from; correct the environment")
        return trajectory

    def _take_in(self, trajectory: Trajectory) -> None:
        self.step += trajectory.num_steps
        self._ended += trajectory.ended
        self.last += trajectory.ended
        self._staleness.append(self.version - trajectory.version)
        for agent, data in trajectory.data.items():
            owner, own = self._owners[agent], map_leaves(_writable, data)
            alg, whose = self.algs[owner], {"agent": agent, "explorer": trajectory.explorer}
            alg.prepare_data(own, **_arguments_of(alg.prepare_data, whose))
            self._num_prepared[owner] += 1

    def _train(self, ready: Sequence[str]) -> dict[str, float]:
        logs: dict[str, float] = {}
        for name in ready:
            told = _numbers(self.config.alg_para.alg_name, self.algs[name].train())
            logs |= told if len(self.algs) == 1 else {f"{k}/{name}": x for k, x in told.items()}
            self._num_trained[name] += 1
        due = [x for x in ready if self.algs[x].checkpoint_ready(self._num_trained[x])]
        if due:
            self._publish()
        for name in due:
            self._save(name)
        return logs

    def _publish(self) -> None:
        self.version += 1
        # Copies, as training changes these weights.
        nets = {name: copy.deepcopy(alg.get_weights()) for name, alg in self.algs.items()}
        self.broker.publish(Weights(self.version, self.step, self.step, nets, None, {}))

    # -- checkpoints ------------------------------------------------------------------------------

    def save(self, path: Path | None = None, scores: Mapping[str, Any] | None = None) -> None:
        """Write checkpoints of the algorithms that were trained since their last ones."""
        for name in self.algs:
            if self._num_trained[name] > self._num_saved[name]:
                self._save(name)

    def _save(self, name: str) -> None:
        index = self._num_saved[name] = self._num_trained[name]
        if self.models is None:
            return
        folder = self._folder(self.models, name)
        folder.mkdir(exist_ok=True)
        files = self.algs[name].save(folder, index)
        files = [files] if isinstance(files, (str, Path)) else files or []
        self._files[name] += [folder / file for file in files]
        while len(self._files[name]) > KEPT * max(1, len(files)):
            old = self._files[name].pop(0)
            if old not in self._files[name] and old.resolve().is_relative_to(folder.resolve()):
                old.unlink(missing_ok=True)
        self.checkpoint = self._files[name][-1] if files else folder

    def _folder(self, models: Path, name: str) -> Path:
        """Return the folder of an algorithm's checkpoints: its own if there are several."""
        return models if len(self.algs) == 1 or models.is_file() else models / name

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self) -> Iterator[Record]:
        """Act without exploring: yield an ``episode`` record for each episode and a ``test`` record
        of all. Every explorer plays its share, so that short episodes are not favoured."""
        num, env_num = self.config.episodes, self.config.env_num
        due = {number: len(range(number, num, env_num)) for number in range(env_num)}
        ended: EndedEpisodes = []
        self._publish()
        while any(due[number] for number in due.keys() - self.broker.lost.keys()):
            trajectory = self._receive()
            if trajectory.ended and due[trajectory.explorer]:
                due[trajectory.explorer] -= 1
                ended += trajectory.ended
                yield self.record("episode", summary_of(trajectory.ended))
        returns = [x[0] for x in ended] or [math.nan]
        spread = {"Return_Std": float(np.std(returns)), "Crashed": num - len(ended)}
        yield self.record("test", summary_of(ended) | spread)


def newest(path: Path) -> Path:
    """Return a file of weights, or the newest one in a folder."""
    path = path.expanduser()
    files = [x for x in path.iterdir() if x.is_file()] if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path}: there is no checkpoint in it")
    return max(files, key=lambda x: (x.stat().st_mtime_ns if x.exists() else 0, x.name))


def _arguments_of(method: Callable[..., Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Select the arguments that a user's method takes, by name."""
    parameters = inspect.signature(method).parameters.values()
    takes_all = any(x.kind is x.VAR_KEYWORD for x in parameters)
    return known if takes_all else {x.name: known[x.name] for x in parameters if x.name in known}


def _writable(x: Any) -> Any:
    """Copy Ray's shared arrays, which cannot be written to."""
    return x.copy() if isinstance(x, np.ndarray) and not x.flags.writeable else x


def _checked_owners(alg: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the owner of each agent's weights by ``update_weights_map``: an agent's name, or a
    name of weights, ``{"prefix", "name"}``, which agents with the same name share."""
    said = alg.update_weights_map([*names], [*names]) or {}
    if not isinstance(said, Mapping):
        raise ValueError(f"update_weights_map gave {shown(said)}; give a mapping, or nothing")
    if {*said} == {"prefix", "name"}:  # it is called for each agent
        said = {name: alg.update_weights_map(name, name) for name in names}
    first: dict[str, str] = {}
    for name, called in [x for x in said.items() if isinstance(x[1], Mapping)]:
        said = {**said, name: first.setdefault(str(sorted(called.items())), name)}
    strange = [x for pair in said.items() for x in pair if x not in names]
    if strange:
        raise ValueError(
            f"update_weights_map: there is no agent {shown(strange[0])}."
            f"{did_you_mean(str(strange[0]), names)} Known: {', '.join(names)}."
        )
    return {name: said.get(name, name) if said else names[0] for name in names}


def _numbers(name: str, told: Any) -> dict[str, float]:
    """Return the numbers of ``train()`` by names."""
    logs = dict(told) if isinstance(told, Mapping) else {} if told is None else {"Loss": told}
    try:
        numbers = {"Loss" if key == "loss" else str(key): float(x) for key, x in logs.items()}
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: train() gave {shown(told)}; return the loss, named numbers, or nothing"
        ) from None
    wrong = [key for key, x in numbers.items() if not math.isfinite(x)]
    if wrong:
        raise ValueError(
            f"{name}: train() gave the {wrong[0]} {numbers[wrong[0]]}; lower the learning rate. "
            "Checkpoints hold earlier weights"
        )
    return numbers
