"""Trains and plays for an agent that is made of a config."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import nn

from offrl.acting.episode import EpisodeResult, Policy
from offrl.algos.shared.model import Networks
from offrl.assembly.spaces import with_images
from offrl.assembly.start import Configs, check_spaces, check_statistics, complete, read_content
from offrl.checkpoint import read_checkpoint, while_loading
from offrl.config import Config
from offrl.config.files import find_config
from offrl.envs.rendering import Finished, free_name
from offrl.envs.vector import ListVector, Setup
from offrl.envs.wrappers import adapted
from offrl.evaluation import TEST_SEEDS, requests_of, run_episodes, summarize, watch
from offrl.faces.by_hand import ByHand
from offrl.faces.environment import Augmented, Environment
from offrl.faces.own_network import use_network
from offrl.online.agent import BaseAgent
from offrl.online.trainer import ActingTrainer
from offrl.training.acting import OnlineTraining
from offrl.training.checkpointer import TaggedNames, put_beside, sha8
from offrl.training.progress import Progress

log = logging.getLogger(__name__)


class Given(NamedTuple):
    """The sorted arguments of an agent. It has an algorithm, or else a config."""

    alg: Any = None
    agent_config: Any = None  # of a pipeline
    attributes: Mapping[str, Any] = {}  #: Of the agent: its ``env`` in a pipeline, or ``config``.
    config: Any = None
    config_file: Path | None = None
    model_file: str | Path | None = None  # with initial weights
    weights: nn.Module | None = None  # whose parameters are the initial ones instead
    network: Any = None  # a user's own

    def session(self, augment: Callable[[Any], Any]) -> "Session | None":
        """Begin the session of an agent with a config. ``augment`` as in ``Session``."""
        return None if self.config is None else Session(self, augment)


def sorted_arguments(
    cfgs: Any, model: Any, model_file: Any, device: torch.device | str | None, log_level: str | int
) -> Given:
    """Sort the arguments of ``Agent``, which are those of a config, an ``Algorithm`` alone, or an
    environment, an algorithm and ``agent_config``."""
    if not isinstance(cfgs, (Config, Mapping, str, Path)):
        of_pipeline = Given(model, model_file, {"env": cfgs})
        return Given(cfgs) if model is None else of_pipeline
    level = log_level.upper() if isinstance(log_level, str) else log_level
    logging.getLogger("offrl").setLevel(level)
    config = complete(cfgs, of_device(device))
    file = find_config(cfgs) if isinstance(cfgs, (str, Path)) else None
    given = Given(None, None, {"config": config}, config, file, model_file)
    if not isinstance(model, (Networks, nn.ModuleDict)):
        return given._replace(network=model)
    return given._replace(weights=getattr(model, "nets", model) if model_file is None else None)


class Session:
    """Holds the trainer of an agent and its config.

    augment: Transforms observations (``Agent.augment_state``).
    """

    config: Config
    trainer: ActingTrainer
    by_hand: ByHand  #: Passes a script's steps to the trainer.

    def __init__(self, given: Given, augment: Callable[[Any], Any]):
        self.config, self._config_file, self._augment = given.config, given.config_file, augment
        self._network = given.network
        self.begin(given.model_file)
        if given.weights is not None:
            self.trainer.alg.deserialize(given.weights.state_dict())

    def begin(self, model_file: str | Path | None) -> None:
        """Make a trainer, with the weights of a checkpoint if one is named."""
        content, name = None, self.config.algo_name
        if model_file is not None:
            content = read_checkpoint(model_file)
            if content["algo_name"] != name:
                theirs = content["algo_name"]
                raise ValueError(
                    f"{model_file}: a checkpoint of {theirs!r}; this agent is of {name!r}"
                )
            check_statistics(model_file, self.config, content)
        with closing(Environment(self.config)) as env:
            trainer = self._trainer_in(env, self.config, content)
        if content is not None:
            with while_loading(content, model_file):
                trainer.alg.deserialize(content["model"])
        self._adopt(trainer)

    @property
    def agent(self) -> BaseAgent:
        """The agent of the trainer."""
        return self.trainer.agent

    def train(
        self,
        env: gymnasium.Env | None,
        train_cfgs: Configs | None,
        gitsha: str | None,
        model_dest: str | Path | None,
    ) -> dict[str, float]:
        """Train, as ``Agent.train`` says."""
        said = {"train": _section(train_cfgs, "train")}
        config = complete(self.config, said)
        if config.train.num_steps is None:
            raise ValueError("train.num_steps: say how many steps the training has")
        names, folder = None, model_dest or config.train.model_dest
        if folder is not None and config.experiment.save.enabled:
            names = TaggedNames(folder, gitsha)
            names.check_free(self._config_file)
            if self._config_file is not None:
                put_beside(self._config_file, names.config(self._config_file), is_linked=False)
        with self._environment(env) as used:
            online = config.train.online
            if said["train"].get("online", {}).get("solved_return") is None:
                known = getattr(env or used, "env_solution", online.solved_return)
                online.solved_return = known if known is None else float(known)
            own = self.trainer.describe()
            trainer = self._trainer_in(used, config, own)
            name, made = trainer.env_args["env_name"], trainer.experiment
            check_spaces("env", own, name, made.obs_shapes, made.ac_dim)
            trainer.alg.deserialize(own["model"])
            self._adopt(trainer)
            return self._run(OnlineTraining(config, trainer=trainer), names)

    def _run(self, training: OnlineTraining, names: TaggedNames | None) -> dict[str, float]:
        num_episodes, saved, save = 0, time.monotonic(), training.config.experiment.save
        if names is not None:
            training.config.meta.provenance["commit"] = names.sha
        for record in Progress(training)(training()):
            num_episodes += int(record["logs"].get("Episodes", 0))
            if names is not None and record["type"] == "epoch":
                waited = time.monotonic() - saved
                if training.is_last or save.is_due(record["epoch"], waited):
                    path, saved = names.checkpoint(training.step), time.monotonic()
                    training.save(path)
                    log.info(f"{path}")
        if names is not None:
            put_beside(names.checkpoint(training.step), names.final)
        return {
            "Steps": training.step,
            "Episodes": num_episodes,
            "Return": training.trainer.smoothed_return,
            "Solved": float(training.trainer.is_solved),
        }

    def play(
        self,
        player: Policy,
        env: gymnasium.Env | None,
        test_cfgs: Configs | None,
        gitsha: str | None,
    ) -> dict[str, float]:
        """Let a policy play episodes, as ``Agent.play`` says."""
        said = {"experiment": {"rollout": _section(test_cfgs, "experiment", "rollout")}}
        config = complete(self.config, said)
        requests = requests_of(config.experiment.rollout, TEST_SEEDS)
        results: list[EpisodeResult] = []
        with self._environment(env) as used:
            if getattr(used, "play", False) and not used.is_shown:
                film = free_name(Path(f"play-{sha8(gitsha)}.mp4"))
                results = watch(player, used, requests, film)
                log.info(f"{film}")
            else:
                with suppress(Finished):  # a person closed the window
                    results.extend(run_episodes(player, used, requests))
        return summarize(results)

    def _trainer_in(
        self, env: gymnasium.Env, config: Config, earlier: Mapping[str, Any] | None
    ) -> ActingTrainer:
        online = config.train.online
        augmented = Augmented(env, self._augment)
        env_args, ends = augmented.get_wrapper_attr("serialize")(), online.terminate_on_success
        setup = Setup(env_args, 1, config.train.seed, online.horizon, None, ends)
        trainer = ActingTrainer(config, envs=ListVector(setup, [augmented]), earlier=earlier)
        if self._network is not None:
            self._network = use_network(trainer.alg, self._network)
        return trainer

    def _adopt(self, trainer: ActingTrainer) -> None:
        self.trainer, self.by_hand = trainer, ByHand(trainer)

    def _environment(self, env: Any) -> AbstractContextManager[Any]:
        """Adapt ``env``; or make one by the config, which is closed at the end of the block."""
        if env is None:
            return closing(Environment(self.config))
        return nullcontext(with_images(adapted(env), self.config))


def _section(cfgs: Configs | None, *names: str) -> dict[str, Any]:
    """Return the keys that differ in a section, of that section or of a whole config."""
    content: Any = read_content(cfgs) or {}
    content = content.to_dict() if isinstance(content, Config) else content
    if "algo_name" in content or names[0] in content:
        for name in names:
            content = content.get(name, {})
    return dict(content)


def of_device(device: torch.device | str | None) -> dict[str, Any]:
    """Return the key of a config that chooses a device; none for ``None``."""
    if device is None:
        return {}
    kind = str(device).partition(":")[0]
    there = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if kind not in there:
        raise ValueError(f"device: there is no {kind!r} here; give {' or '.join(there)}, or None")
    return {"train": {"cuda": kind == "cuda"}}
