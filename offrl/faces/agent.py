"""An agent of a config, for scripts: it acts, learns, trains and plays."""

import logging
import time
from abc import ABCMeta
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from offrl import __version__
from offrl.acting.episode import ACTION_MASK, EpisodeResult, Policy, check_obs, finite, truth
from offrl.algos.shared.model import Model, Networks
from offrl.assembly.spaces import clipped, with_images
from offrl.assembly.start import Configs, check_spaces, check_statistics, complete, opened
from offrl.checkpoint import read_checkpoint, while_loading, write_checkpoint
from offrl.config import Config
from offrl.config.files import find_config
from offrl.envs.adapted import adapted
from offrl.envs.vector import ListVector
from offrl.envs.window import Finished, free_name
from offrl.evaluation import TEST_SEEDS, requests_of, run_episodes, summarize, watch
from offrl.faces.by_hand import ByHand
from offrl.faces.environment import Augmented, Environment
from offrl.faces.own_network import use_network
from offrl.online import agent
from offrl.online.trainer import Trainer, to_the_end
from offrl.training.tagged import TaggedNames, put_beside, sha8
from offrl.tree import merge

log = logging.getLogger(__name__)


class Agent(agent.Agent, metaclass=ABCMeta):
    """Carries an ``Algorithm`` through environments, or what a config says: then it is made with
    its algorithm, and it ``train``\\ s and ``play``\\ s.

    A script of its own steps an ``Environment`` and tells the agent what it sees::

        state, over = agent.append_state(env.reset()[0]), False
        while not over:
            obs, agent.reward, terminated, truncated, _ = env.step(agent.action(state))
            over = terminated or truncated
            state = agent.append_state(obs)
            agent.optimize()
        agent.reset(terminated)

    cfgs: an ``Algorithm``; or a config, nested dicts with what differs from the defaults, or the
        path of a config file.
    model: the networks whose weights it begins with (``alg.model`` of another agent); or a module
        of your own, or its class, that is the policy's or the values' network (``use_network``).
    model_file: a checkpoint to begin with instead, see ``init``.
    device: ``"cpu"`` or ``"cuda"``; ``None``: as the config says.
    log_level: what is logged at least (``"debug"``, ``"info"``, ``"warning"``).
    obs_ndim: of an ``Algorithm``, the number of dimensions of an observation of one environment.
    """

    _trainer: Trainer | None = None
    _by_hand: ByHand | None = None
    _state: Any = None
    _memory: Any = None  # of the deterministic policy
    _model: Any = None  # a user's own
    _reward = 0.0
    ep_reward = 0.0  #: The sum of the rewards of the episode.

    def __init__(
        self,
        cfgs: Any,
        model: Model | None = None,
        model_file: str | Path | None = None,
        device: torch.device | str | None = None,
        log_level: str | int = "info",
        obs_ndim: int = 1,
    ):
        self._forget_episode()
        if not isinstance(cfgs, (Config, Mapping, str, Path)):
            # Agent(env, alg, agent_config), of a pipeline, or Agent(alg)
            alg, env = (cfgs, None) if model is None else (model, cfgs)
            super().__init__(alg, obs_ndim, env, model_file)  # type: ignore[arg-type]
            return
        level = log_level.upper() if isinstance(log_level, str) else log_level
        logging.getLogger("offrl").setLevel(level)
        self.config = _on_device(complete(cfgs), device)
        if model is not None and not isinstance(model, (Networks, nn.ModuleDict)):
            self._model = model
        self._config_file = find_config(cfgs) if isinstance(cfgs, (str, Path)) else None
        self._make(model_file)
        super().__init__(self.alg)
        if model is not None and self._model is None and model_file is None:
            self.alg.deserialize(getattr(model, "nets", model).state_dict())

    def init(self, model_file: str | Path) -> None:
        """Begin anew with a checkpoint of the same algorithm: its weights, and what it normalises
        by."""
        self._of_config("init")
        self._make(model_file)

    def _make(self, model_file: str | Path | None) -> None:
        content, name = None, self.config.algo_name
        if model_file is not None:
            content = read_checkpoint(model_file)
            if content["algo_name"] != name:
                raise ValueError(
                    f"{model_file}: a checkpoint of {content['algo_name']!r}; this agent is of "
                    f"{name!r}"
                )
            check_statistics(model_file, self.config, content)
        with closing(Environment(self.config)) as env:
            trainer = self._trainer_in(env, self.config, content)
        if content is not None:
            with while_loading(content, model_file):
                trainer.alg.deserialize(content["model"])
        self._use(trainer)

    # -- the episode that a script makes ----------------------------------------------------------

    @property
    def reward(self) -> float:
        """The reward of the last action; to set it adds it to ``ep_reward``."""
        return self._reward

    @reward.setter
    def reward(self, reward: float) -> None:
        self._reward = finite(reward)
        self.ep_reward += self._reward
        if self._by_hand is not None:
            self._by_hand.receive(self._reward)

    @property
    def state(self) -> dict[str, np.ndarray] | None:
        """Give what ``append_state`` returned last, ``{key: [frame_stack, ...]}``; ``None`` before
        the first observation of an episode. To set it appends an observation."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        if state is None or self._trainer is None:  # without one nothing is stacked
            self._state = state
        elif state is not self._state:
            self.append_state(state)

    def reset(self, terminated: bool = False) -> None:
        """Begin an episode.

        terminated: whether the last one ended by itself, so that nothing would have followed. Say
            it where episodes do: else they are taken for cut off.
        """
        terminated = truth(terminated, "terminated")
        self._forget_episode()
        if self._by_hand is not None:
            self._by_hand.end(terminated)

    def flash(self) -> None:
        """Clear the rewards of the episode, which goes on."""
        self._reward = self.ep_reward = 0.0

    def augment_state(self, state: Any) -> Any:
        """Change what the environment shows before it is learned from; to be overridden. Every
        observation goes through here, of ``train`` and ``play`` as well."""
        return state

    def append_state(self, state: Any) -> dict[str, np.ndarray]:
        """Take in what the environment shows, and give the last observations with it,
        ``{key: [frame_stack, ...]}``; the first one of an episode is all of them."""
        trainer = self._of_config("append_state")
        named = trainer.alg.named(self.augment_state(state))
        keys = {*trainer.alg.obs_spec.keys("obs"), ACTION_MASK} & {*named}
        check_obs(named, sorted(keys))
        obs = {key: np.asarray(named[key]) for key in sorted(keys)}
        trainer.alg.obs_spec.check_shapes({k: np.shape(x) for k, x in named.items()}, "obs")
        num = trainer.config.train.frame_stack
        before = self._state or {key: np.stack([x] * num) for key, x in obs.items()}
        self._state = {key: np.concatenate([before[key][1:], x[None]]) for key, x in obs.items()}
        self._hand().observe(obs)
        return self._state

    def action(self, state: Any, deterministic: bool = False) -> np.ndarray:
        """Choose the action in a state that ``append_state`` returned last, or for an observation,
        which is appended. It explores, unless it is to be deterministic."""
        if self._trainer is None:
            return self.predict(state) if deterministic else self.sample(state)
        if state is not self._state:
            self.append_state(state)
        if not deterministic:
            return self._hand().choose()
        batch = {key: torch.from_numpy(x)[None] for key, x in self._state.items()}
        self.alg.set_eval()
        with torch.no_grad():
            action, self._memory = self.alg.act(batch, None, self._memory, None)
            raw = self.alg.raw_action(action).cpu().numpy()[0]
        return clipped(raw, self._trainer.envs.action_space)

    def optimize(self) -> dict[str, float]:
        """Make one update if there are enough steps to learn from, and give its logs; else nothing.
        Algorithms that learn from each step once make all updates of ``collect_steps`` of them; of
        more than twice as many the first are forgotten."""
        self._of_config("optimize")
        return self._hand().learn()

    # -- whole trainings and episodes -------------------------------------------------------------

    def train(
        self,
        env: gymnasium.Env | None = None,
        train_cfgs: Configs | None = None,
        gitsha: str | None = None,
        model_dest: str | Path | None = None,
    ) -> dict[str, float]:
        """Train in an environment for ``train.num_steps``, or until the mean return of its last
        episodes (``train.online.solved_episodes``) is its ``env_solution``.

        Checkpoints are written into ``model_dest`` as ``agent-STEP-SHA8.pth`` when
        ``experiment.save`` says so, and as ``agent-final-SHA8.pth`` at the end; a config file that
        the agent was made of stands beside them. Returns ``Steps``, ``Episodes``, the mean
        ``Return`` of the last ones, and whether the task is ``Solved`` (1 or 0).

        env: ``None``: the one that the config names.
        train_cfgs: what differs from the section ``train`` of the config; or a config, or the path
            of one, whose section is meant.
        gitsha: what SHA8 are eight characters of; ``None``: the commit of the repository that you
            are in.
        model_dest: ``None``: as ``train.model_dest`` says; nothing is written if that is null, or
            ``experiment.save.enabled`` false.
        """
        self._of_config("train")
        said = {"train": _section(train_cfgs, "train")}
        config = complete(merge(self.config.to_dict(), said))
        if config.train.num_steps is None:
            raise ValueError("train.num_steps: say how many steps the training has")
        names, folder = None, model_dest or config.train.model_dest
        if folder is not None and config.experiment.save.enabled:
            names = TaggedNames(folder, gitsha)
            names.check_free(self._config_file)
            if self._config_file is not None:
                put_beside(self._config_file, names.config(self._config_file), is_linked=False)
        with self._own_unless(env) as used:
            online = config.train.online
            if said["train"].get("online", {}).get("solved_return") is None:
                known = getattr(env or used, "env_solution", online.solved_return)
                online.solved_return = known if known is None else float(known)
            own = self._of_config("train").describe()
            trainer = self._trainer_in(used, config, own)
            name, made = trainer.env_args["env_name"], trainer.experiment
            check_spaces("env", own, name, made.obs_shapes, made.ac_dim)
            trainer.alg.deserialize(own["model"])
            self._use(trainer)
            return self._trained(trainer, names)

    def _trained(self, trainer: Trainer, names: TaggedNames | None) -> dict[str, float]:
        experiment, num_episodes = trainer.config.experiment, 0
        num_epochs, saved = 0, time.monotonic()
        for _ in to_the_end(trainer):
            for record in trainer.round():
                num_episodes += int(record["logs"].get("Episodes", 0))
            before, num_epochs = num_epochs, trainer.step // experiment.epoch_every_n_steps
            ended, waited = range(before + 1, num_epochs + 1), time.monotonic() - saved
            if names is not None and any(experiment.save.is_due(x, waited) for x in ended):
                self._save(names.checkpoint(trainer.step), names.sha)
                saved = time.monotonic()
        if names is not None:
            last = names.checkpoint(trainer.step)
            if not last.exists():
                self._save(last, names.sha)
            put_beside(last, names.final)
        return {
            "Steps": trainer.step,
            "Episodes": num_episodes,
            "Return": trainer.smoothed_return,
            "Solved": float(trainer.is_solved),
        }

    def _save(self, path: Path, sha: str) -> None:
        trainer = self._of_config("train")
        trainer.config.meta.provenance = {"offrl": __version__, "commit": sha}
        position = {"epoch": trainer.epoch, "step": trainer.step}
        write_checkpoint(path, trainer.describe() | {"variable_state": position})
        log.info(f"{path}")

    def play(
        self,
        env: gymnasium.Env | None = None,
        test_cfgs: Configs | None = None,
        gitsha: str | None = None,
    ) -> dict[str, float]:
        """Play episodes without exploring, and summarise them (``Return``, ``Horizon``,
        ``Success_Rate`` and more). Where the environment was made to ``play``, they are shown in a
        window, or without a display filmed into ``play-SHA8.mp4``.

        test_cfgs: what differs from the section ``experiment.rollout`` of the config (``n``,
            ``horizon``, ``terminate_on_success``); or a config, or the path of one.
        gitsha: as ``train`` has it.
        """
        said = {"experiment": {"rollout": _section(test_cfgs, "experiment", "rollout")}}
        config = complete(merge(self._of_config("play").config.to_dict(), said))
        requests = requests_of(config.experiment.rollout, TEST_SEEDS)
        results: list[EpisodeResult] = []
        with self._own_unless(env) as env:
            if getattr(env, "play", False) and not env.is_shown:
                film = free_name(Path(f"play-{sha8(gitsha)}.mp4"))
                results = watch(_Player(self), env, requests, film)
                log.info(f"{film}")
            else:
                with suppress(Finished):  # the window was closed
                    results.extend(run_episodes(_Player(self), env, requests))
        return summarize(results)

    # -- the roles --------------------------------------------------------------------------------

    def predict(self, obs: agent.Obs) -> np.ndarray:
        return super().predict(obs) if self._trainer is None else self._trainer.agent.predict(obs)

    def sample(self, obs: agent.Obs) -> np.ndarray:
        return super().sample(obs) if self._trainer is None else self._trainer.agent.sample(obs)

    def learn(self, data: Mapping[str, Any]) -> dict[str, float]:
        return super().learn(data) if self._trainer is None else self._trainer.agent.learn(data)

    def _trainer_in(
        self, env: gymnasium.Env, config: Config, earlier: Mapping[str, Any] | None
    ) -> Trainer:
        online = config.train.online
        augmented = Augmented(env, self.augment_state)
        envs = ListVector(
            augmented.get_wrapper_attr("serialize")(),
            1,
            config.train.seed,
            online.horizon,
            terminate_on_success=online.terminate_on_success,
            envs=[augmented],
        )
        trainer = Trainer(config, envs=envs, earlier=earlier)
        if self._model is not None:
            self._model = use_network(trainer.alg, self._model)
        return trainer

    def _own_unless(self, env: Any) -> AbstractContextManager:
        """``env``, as offrl asks for it; or one of the config, which is closed in the end."""
        if env is None:
            return closing(Environment(self.config))
        return nullcontext(with_images(adapted(env), self.config))

    def _use(self, trainer: Trainer) -> None:
        self._trainer, self.alg = trainer, trainer.alg
        self._by_hand = None

    def _hand(self) -> ByHand:
        """Its steps by hand, which begin where nothing was collected yet."""
        if self._by_hand is None:
            self._by_hand = ByHand(self._of_config("action"))
        return self._by_hand

    def _of_config(self, method: str) -> Trainer:
        if self._trainer is None:
            raise ValueError(
                f"{method}: this agent was made of an Algorithm alone; make it of a config, "
                "Agent(cfgs)"
            )
        return self._trainer

    def _forget_episode(self) -> None:
        self._state = self._memory = None
        self.flash()


Agent.register(agent.PolicyAgent)  # which trainers make, in the same role


class _Player(Policy):
    """An agent as a policy that does not explore."""

    def __init__(self, agent: Agent):
        self._agent = agent

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        self._agent.reset()

    def __call__(self, obs: Any, goal: Any = None, reward: float | None = None) -> np.ndarray:
        return self._agent.action(self._agent.append_state(obs), deterministic=True)


def _section(cfgs: Configs | None, *names: str) -> dict[str, Any]:
    """Give what differs in a section, of which a whole config may be given."""
    content: Any = opened(cfgs) or {}
    content = content.to_dict() if isinstance(content, Config) else content
    if "algo_name" in content or names[0] in content:
        for name in names:
            content = content.get(name, {})
    return dict(content)


def _on_device(config: Config, device: torch.device | str | None) -> Config:
    if device is None:
        return config
    kind = str(device).partition(":")[0]
    there = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if kind not in there:
        raise ValueError(f"device: there is no {kind!r} here; give {' or '.join(there)}, or None")
    config = config.model_copy(deep=True)
    config.train.cuda = kind == "cuda"
    return config
