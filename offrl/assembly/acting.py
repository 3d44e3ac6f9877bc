"""Assembles the parts of an online training from its config."""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete

from offrl.algos import algo_factory
from offrl.algos.shared.engine import chosen_engine
from offrl.algos.shared.masks import ACTION_MASK
from offrl.algos.shared.memory import check_training_fits
from offrl.assembly import spaces
from offrl.assembly.start import check_spaces, start_of
from offrl.checkpoint import while_loading
from offrl.config import Config, RewardsConfig, without_pretrained
from offrl.config.build import for_algo
from offrl.data.computed import transformed
from offrl.data.datasets import make_dataset
from offrl.data.formats.files import find_data
from offrl.data.replay import Replay, ReplayStore, bytes_needed
from offrl.data.rollout import Rollout
from offrl.data.sampling import ACHIEVED, Hindsight, Priorities
from offrl.data.sequence import SequenceDataset
from offrl.data.windows import Window
from offrl.envs.vector import GymnasiumVector, Stepped, VectorEnv, make_vector_env
from offrl.memory import check_memory
from offrl.seeding import seed_everything
from offrl.specs import processed_shapes
from offrl.tree import as_arrays

log = logging.getLogger(__name__)

Envs = VectorEnv | gymnasium.vector.VectorEnv

WITHOUT_LIMIT = (1, "robosuite", "metaworld")  # simulators whose tasks never end by themselves
HORIZON = 500  # steps of their episodes, Meta-World's own number


class ActingExperiment:
    """Holds the environments, the algorithm and the buffer of an online training.

    config: The environments complete it. ``ValueError`` if it cannot be trained.
    start: The content of the checkpoint that it starts from, if it names one.
    earlier: As in ``assemble``.
    """

    def __init__(
        self,
        config: Config,
        envs: VectorEnv,
        start: Mapping[str, Any] | None,
        earlier: Mapping[str, Any] | None,
    ):
        self.config, self.envs = config, envs
        known = start or earlier or {}
        self._rewards = config.train.rewards
        self._changes_rewards = self._rewards != RewardsConfig()
        normalizes = self._rewards.normalization is not None
        #: Statistics that normalise rewards (``train.rewards``).
        self.reward_stats = known.get("reward_normalization_stats") if normalizes else None
        self.moments = known.get("running_statistics", {})  #: See ``RunningStatistics``.
        use_cuda = config.train.cuda and torch.cuda.is_available()
        self.device = torch.device("cuda" if use_cuda else "cpu")
        config.train.engine = chosen_engine(config, self.device, resumes=earlier is not None)
        self.env_args = self.envs.env_args
        spaces.fit(config, self.envs)
        space = self.envs.action_space
        stored = {key: box.shape or () for key, box in self.envs.observation_space.items()}
        self.obs_shapes = processed_shapes(config.observation, stored)
        self.ac_dim = int(space.n if isinstance(space, Discrete) else np.prod(space.shape))
        self.alg = self._make_alg(start, earlier)
        online = config.train.online
        #: The number of first steps without learning.
        self.num_before = max(online.warmup_steps, 0 if self.alg.ON_POLICY else online.random_steps)
        _warn_of_length(config, self.num_before, self.envs.num_envs)

    def _make_alg(self, start: Mapping[str, Any] | None, earlier: Mapping[str, Any] | None) -> Any:
        config, shapes, where = self.config, (self.obs_shapes, self.ac_dim), "experiment.ckpt_path"
        if start is not None:
            check_spaces(where, start, self.env_args["env_name"], *shapes)
            config = without_pretrained(config)
        config = for_algo(config, earlier)
        alg = algo_factory(config.algo_name, config, *shapes, device=self.device)
        key = config.train.action_keys[0]
        alg.set_statistics(obs={}, actions=spaces.action_statistics(self.envs.action_space, key))
        if start is not None:
            with while_loading(start, f"{where}: {config.experiment.ckpt_path}"):
                alg.start_from(start)
        model = (start or earlier or {}).get("model", {})
        if "normalization" in model:
            alg.set_statistics(**model["normalization"])
        check_training_fits(config.algo_name, alg.optimizers.values(), self.device)
        return alg

    def as_learned(self, stepped: Stepped) -> Stepped:
        """Transform the rewards of a step as training transforms rewards in data."""
        if not self._changes_rewards:
            return stepped
        return stepped._replace(rewards=self._learned_rewards(stepped.rewards))

    def _learned_rewards(self, rewards: np.ndarray) -> np.ndarray:
        options = self._rewards.to_dict()
        return transformed(rewards, np.array([]), options, self.reward_stats)[0]

    # -- the buffer -------------------------------------------------------------------------------

    def make_buffer(self, num_envs: int | None = None) -> Replay:
        """Make the buffer for so many environments; ``None``: for these."""
        make = self._make_rollout if self.alg.ON_POLICY else self._make_replay
        buffer = make(num_envs or self.envs.num_envs)
        if self._rewards.normalization is not None and not self.reward_stats:
            raise ValueError(
                "train.rewards.normalization: there are no demonstrations (train.data) whose "
                "rewards say what is normal; set it to null"
            )
        return buffer

    def _make_rollout(self, num_envs: int) -> Rollout:
        train, name = self.config.train, self.config.algo_name
        # An end may follow every step.
        capacity = num_envs * (2 * train.online.collect_steps + 1)
        store = self._make_store(num_envs, capacity, "train.online.collect_steps")
        demos = self._load_demos() if self.alg.NEEDS_DEMOS else None
        if train.online.replay.prioritized or train.online.replay.hindsight_share:
            raise ValueError(
                f"train.online.replay.prioritized, hindsight_share: {name} learns from the steps "
                "of the round and keeps no replay; leave both out"
            )
        if train.accumulate > 1:
            raise ValueError(
                f"train.accumulate: {name} learns from whole rounds; set it to 1, and "
                "train.batch_size to the size of its batches"
            )
        if train.data and demos is None:
            log.warning(f"{name} learns from its own steps alone, not train.data")
        window = Window(train.frame_stack)
        return Rollout(store, store.obs_keys, window, seed=train.seed, demos=demos)

    def _make_replay(self, num_envs: int) -> Replay:
        train, options = self.config.train, self.config.train.online.replay
        self._check_replay(num_envs)
        if not options.saved:
            log.info(
                "train.online.replay.saved is false: checkpoints hold no steps, and a resumed run "
                "collects new ones before it learns, so that its results differ"
            )
        # An end may follow every step.
        capacity = min(options.capacity, 2 * (train.num_steps or options.capacity))
        store = self._make_store(num_envs, capacity, "train.online.replay.capacity")
        exponents, hindsight = (options.priority_exponent, options.correction_exponent), None
        if options.hindsight_share:
            judge = spaces.judge_of(self.env_args, self.alg.obs_spec.keys("obs"))

            def learned(achieved: np.ndarray, desired: np.ndarray) -> Any:
                rewards, terminated = judge(achieved, desired)
                return self._learned_rewards(rewards), terminated

            hindsight = Hindsight(options.hindsight_share, learned)
        return Replay(
            store,
            store.obs_keys,
            Window(train.frame_stack, train.seq_length),
            train.seed,
            self._load_demos(),
            options.demo_share,
            Priorities(len(store.is_step), *exponents) if options.prioritized else None,
            hindsight,
        )

    def _make_store(self, num_envs: int, capacity: int, key: str) -> ReplayStore:
        """Make a store for ``capacity`` observations, which the config sets by ``key``."""
        online, shown = self.config.train.online, self.envs.observation_space.spaces
        others = {ACTION_MASK, ACHIEVED} if online.replay.hindsight_share else {ACTION_MASK}
        columns: dict[str, Any] = {"actions": ((self.ac_dim,), np.float32)}
        for name in dict.fromkeys([*self.alg.obs_spec.keys("obs"), *sorted(others & {*shown})]):
            is_image = shown[name].dtype == np.uint8
            columns[f"obs/{name}"] = shown[name].shape, np.uint8 if is_image else np.float32
        if "returns" in self.alg.NEEDS:
            columns["returns"] = ((), np.float32)
        copied = ", with a copy when it is saved (train.online.replay.saved)," * online.replay.saved
        num_bytes = bytes_needed(num_envs, capacity, columns) * (1 + online.replay.saved)
        check_memory(num_bytes, f"{key}: a buffer of {capacity} observations{copied}", "lower it")
        discount = getattr(self.config.algo, "discount", 1.0)
        return ReplayStore(num_envs, capacity, columns, self.config.train.frame_stack, discount)

    def _check_replay(self, num_envs: int) -> None:
        """Refuse settings of the replay that the algorithm cannot learn with."""
        name, train, alg = self.config.algo_name, self.config.train, self.alg
        online, replay, size = train.online, train.online.replay, train.samples_per_step
        least, share = num_envs * (train.frame_stack + train.seq_length), replay.demo_share
        lacks_errors = replay.prioritized and not hasattr(alg, "td_errors")
        lacks_demos = alg.NEEDS_DEMOS and share is not None and not round(share * size)
        takes_returns = "returns" in alg.NEEDS
        changes_returns = takes_returns and (online.normalize_rewards or online.clip_rewards)
        problems = {
            f"replay.capacity: {replay.capacity} observations of {num_envs} environments hold no "
            f"step to learn from; keep at least {least}, better thousands": replay.capacity < least,
            f"replay.prioritized: {name} does not say how wrong its values were; set it to "
            "false": lacks_errors,
            f"replay.demo_share: {name} imitates demonstrations, and a batch of {size} has none of "
            "them; make it larger": lacks_demos,
            f"normalize_rewards, clip_rewards: {name} learns from the returns of episodes, which "
            "are sums of the rewards as they are; set both to false": changes_returns,
            f"replay.hindsight_share: {name} learns from the returns of episodes, which are not "
            "known of other goals; set it to 0": takes_returns and replay.hindsight_share,
        }
        for problem, is_met in problems.items():
            if is_met:
                raise ValueError(f"train.online.{problem}")

    def _load_demos(self) -> SequenceDataset | None:
        """Load the demonstrations of ``train.data``, in the units of collected steps."""
        if not self.config.train.data:
            if self.alg.NEEDS_DEMOS:
                raise ValueError(
                    f"train.data: {self.config.algo_name} imitates demonstrations; name a file "
                    f"of some of {self.env_args['env_name']} (offrl collect records them)"
                )
            return None
        for entry in self.config.train.data:
            entry.path = str(find_data(entry.path))
        demos = make_dataset(
            self.config,
            {},
            action_stats=as_arrays(self.alg.action_normalizer.stats),
            reward_stats=self.reward_stats or None,
            load_next_obs=True,
            hdf5_normalize_obs=False,
        )
        self.reward_stats = demos.reward_stats
        # Other algorithms do not learn from demonstrations' rewards.
        if not (self.alg.NEEDS_DEMOS or self.alg.ASKS_EXPERT):
            self.alg.inspect_data(demos.values)
        for key, shape in demos.obs_shapes.items():
            shown = self.envs.observation_space[key].shape or ()
            if shape != shown:
                raise ValueError(
                    f"{demos.hdf5_path}: {key} has the shape {[*shape]}, but the environment shows "
                    f"{[*shown]}; name demonstrations of the same task (train.data)"
                )
        return demos


def assemble(
    config: Config,
    envs: Envs | None,
    earlier: Mapping[str, Any] | None,
    num_envs: int | None = None,
) -> ActingExperiment:
    """Assemble what an online training needs, as its config says. Raises ``ValueError`` if it
    cannot be trained, before an environment is stepped.

    config: Of this experiment alone; the environments complete it.
    envs: Existing environments, instead of those that the config names.
    earlier: A checkpoint of the same training, which is about to be resumed.
    num_envs: The number of environments to make; ``None``: as many as the config says.
    """
    start = start_of(config) if earlier is None else None
    seed_everything(config.train.seed)
    if envs is not None:
        return ActingExperiment(config, _wrap_given(config, envs), start, earlier)
    recorded = (start or earlier or {}).get("env_metadata")
    return ActingExperiment(config, _make_envs(config, recorded, num_envs), start, earlier)


def _warn_of_length(config: Config, num_before: int, num_envs: int) -> None:
    num_steps, collect_steps = config.train.num_steps, config.train.online.collect_steps
    if num_steps is not None and num_steps <= num_before:
        log.warning(
            f"train.num_steps: nothing is learned in {num_steps} steps, as the first "
            f"{num_before} are only collected (train.online.random_steps, warmup_steps)"
        )
    in_round = collect_steps * num_envs
    made = -(-(num_steps or 0) // in_round) * in_round
    if num_steps and made > 1.1 * num_steps:
        log.warning(
            f"train.num_steps: {made} steps are made, not {num_steps}, as rounds are whole and "
            f"have {in_round} (train.online.collect_steps in each environment)"
        )


def _make_envs(
    config: Config, recorded: Mapping[str, Any] | None, num_envs: int | None
) -> VectorEnv:
    """Make the environments that a config names, and complete the config by them."""
    env_args = spaces.env_args_of(config, recorded)
    online: Any = config.train.online
    rollout = config.experiment.rollout
    if online.horizon is None and env_args.get("type") in WITHOUT_LIMIT:
        online.horizon = HORIZON
        rollout.horizon = min(rollout.horizon, HORIZON)

    def make() -> VectorEnv:
        return make_vector_env(
            spaces.env_args_of(config, recorded),
            num_envs or online.num_envs,
            config.train.seed,
            horizon=online.horizon,
            obs_keys=spaces.asked_obs_keys(config),
            terminate_on_success=online.terminate_on_success,
            timeout=online.timeout,
        )

    envs = make()
    if added := spaces.image_wrappers(config, envs.observation_space):
        envs.close()
        online.wrappers = [*(env_args.get("wrappers") or []), *added]
        envs = make()
    return envs


def _wrap_given(config: Config, envs: Envs) -> VectorEnv:
    online = config.train.online
    if online.wrappers and not getattr(envs, "env_args", {}).get("wrappers"):
        raise ValueError(
            "train.online.wrappers: environments that are given are not put into wrappers; give "
            "them in these, or name the environment (experiment.env)"
        )
    if isinstance(envs, gymnasium.vector.VectorEnv):
        named = spaces.env_args_of(config) if config.experiment.env else None
        ends: Any = {"horizon": online.horizon, "terminate_on_success": online.terminate_on_success}
        keys = spaces.asked_obs_keys(config)
        envs = GymnasiumVector(envs, config.train.seed, named, keys, **ends)
    if not isinstance(envs, VectorEnv):
        raise ValueError(
            f"envs: {envs} is no vector of environments; give one (gymnasium.make_vec), or name an "
            "environment (experiment.env)"
        )
    return envs
