"""Puts together what a config of an online training describes."""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Discrete

from offrl.algos import algo_factory
from offrl.algos.shared.masks import ACTION_MASK
from offrl.algos.shared.memory import check_training_fits
from offrl.assembly.spaces import (
    action_statistics,
    env_args_of,
    fitted,
    judge_of,
    limited,
    seen_by,
    turned,
)
from offrl.assembly.start import check_spaces, start_of
from offrl.checkpoint import while_loading
from offrl.config import Config, RewardsConfig, without_pretrained
from offrl.config.longer import for_algo
from offrl.data.computed import transformed
from offrl.data.datasets import make_dataset
from offrl.data.formats.files import find_data
from offrl.data.hindsight import ACHIEVED, Hindsight
from offrl.data.priorities import Priorities
from offrl.data.replay import Replay, ReplayStore, bytes_needed
from offrl.data.rollout import Rollout
from offrl.data.sequence import SequenceDataset
from offrl.data.windows import Window
from offrl.envs.vector import GymnasiumVector, VectorEnv, make_vector_env
from offrl.memory import check_memory
from offrl.seeding import seed_everything
from offrl.specs import processed_shapes
from offrl.tree import as_arrays

log = logging.getLogger(__name__)

Envs = VectorEnv | gymnasium.vector.VectorEnv


class ActingExperiment:
    """Environments, an algorithm and a buffer by a config.

    Refuses what cannot be learned with ``ValueError``, before one of these environments is stepped.

    envs: environments that are there already, instead of those that the config names.
    earlier: a checkpoint of the same training, which is about to be gone on with.
    num_envs: of those that are made; ``None``: as many as the config says.
    """

    def __init__(
        self,
        config: Config,
        envs: Envs | None,
        earlier: Mapping[str, Any] | None,
        num_envs: int | None = None,
    ):
        start = start_of(config) if earlier is None else None
        known = start or earlier or {}
        self._rewards = config.train.rewards
        self._changes_rewards = self._rewards != RewardsConfig()
        normalizes = self._rewards.normalization is not None
        #: What rewards are normalised by (``train.rewards``).
        self.reward_stats = known.get("reward_normalization_stats") if normalizes else None
        self.moments = known.get("running_statistics", {})
        seed_everything(config.train.seed)
        use_cuda = config.train.cuda and torch.cuda.is_available()
        self.device = torch.device("cuda" if use_cuda else "cpu")
        recorded = known.get("env_metadata")
        if envs is None:
            env_args = env_args_of(config, recorded)
            config = limited(config, env_args)
            self.envs = _make_envs(config, env_args, num_envs)
            if added := turned(config, self.envs.observation_space):
                self.envs.close()
                config.train.online.wrappers = [*(env_args.get("wrappers") or []), *added]
                self.envs = _make_envs(config, env_args_of(config, recorded), num_envs)
        else:
            self.envs = _given(envs, config)
        self.env_args = self.envs.env_args
        self.config = fitted(config, self.envs)
        space = self.envs.action_space
        stored = {key: box.shape for key, box in self.envs.observation_space.items()}
        self.obs_shapes = processed_shapes(self.config.observation, stored)
        self.ac_dim = int(space.n if isinstance(space, Discrete) else np.prod(space.shape))
        self.alg = self._make_alg(start, earlier)
        self._warn_of_no_update()

    @property
    def num_before(self) -> int:
        """Count how many steps are only collected at first."""
        online = self.config.train.online
        return max(online.warmup_steps, 0 if self.alg.ON_POLICY else online.random_steps)

    def _warn_of_no_update(self) -> None:
        num_steps = self.config.train.num_steps
        if num_steps is not None and num_steps <= self.num_before:
            log.warning(
                f"train.num_steps: nothing is learned in {num_steps} steps, as the first "
                f"{self.num_before} are only collected (train.online.random_steps, warmup_steps)"
            )
        in_round = self.config.train.online.collect_steps * self.envs.num_envs
        made = -(-(num_steps or 0) // in_round) * in_round
        if num_steps and made > 1.1 * num_steps:
            log.warning(
                f"train.num_steps: {made} steps are made, not {num_steps}, as rounds are whole and "
                f"have {in_round} (train.online.collect_steps in each environment)"
            )

    def _make_alg(self, start: Mapping[str, Any] | None, earlier: Mapping[str, Any] | None) -> Any:
        config, space = self.config, self.envs.action_space
        if start is not None:
            where = "experiment.ckpt_path"
            check_spaces(where, start, self.env_args["env_name"], self.obs_shapes, self.ac_dim)
            config = without_pretrained(config)
        shapes = self.obs_shapes, self.ac_dim
        config = for_algo(config, earlier)
        alg = algo_factory(config.algo_name, config, *shapes, device=self.device)
        alg.set_statistics(obs={}, actions=action_statistics(space, config.train.action_keys[0]))
        if start is not None:
            with while_loading(start, f"experiment.ckpt_path: {config.experiment.ckpt_path}"):
                alg.start_from(start)
        model = (start or earlier or {}).get("model", {})
        if "normalization" in model:
            alg.set_statistics(**model["normalization"])
        check_training_fits(config.algo_name, alg.optimizers.values(), self.device)
        return alg

    def _columns(self) -> dict[str, Any]:
        """The shape and type of what is stored of each step."""
        shown = self.envs.observation_space.spaces
        others = {ACTION_MASK}
        if self.config.train.online.replay.hindsight_share:
            others.add(ACHIEVED)
        keys = dict.fromkeys([*self.alg.obs_spec.keys("obs"), *sorted(others & {*shown})])
        columns: dict[str, Any] = {"actions": ((self.ac_dim,), np.float32)}
        for key in keys:
            is_image = shown[key].dtype == np.uint8
            columns[f"obs/{key}"] = shown[key].shape, np.uint8 if is_image else np.float32
        if "returns" in self.alg.NEEDS:
            columns["returns"] = ((), np.float32)
        return columns

    def make_buffer(self, num_envs: int | None = None) -> Replay:
        """Make what steps are learned from, of so many environments; ``None``: of these."""
        make = self._make_rollout if self.alg.ON_POLICY else self._make_replay
        buffer = make(num_envs or self.envs.num_envs)
        if self._rewards.normalization is not None and not self.reward_stats:
            raise ValueError(
                "train.rewards.normalization: there are no demonstrations (train.data) whose "
                "rewards say what is normal; set it to null"
            )
        return buffer

    def _make_store(self, num_envs: int, capacity: int, what: str) -> ReplayStore:
        """A store of so many observations, which the config says in ``what``."""
        columns = self._columns()
        is_copied = self.config.train.online.replay.saved
        copied = ", with a copy when it is saved (train.online.replay.saved)," * is_copied
        num_bytes = bytes_needed(num_envs, capacity, columns) * (1 + is_copied)
        check_memory(num_bytes, f"{what}: a buffer of {capacity} observations{copied}", "lower it")
        discount = getattr(self.config.algo, "discount", 1.0)
        return ReplayStore(num_envs, capacity, columns, self.config.train.frame_stack, discount)

    def _make_rollout(self, num_envs: int) -> Rollout:
        train = self.config.train
        # An end may follow every step.
        most = num_envs * (2 * train.online.collect_steps + 1)
        store = self._make_store(num_envs, most, "train.online.collect_steps")
        demos = self._load_demos() if self.alg.NEEDS_DEMOS else None
        replay = train.online.replay
        if replay.prioritized or replay.hindsight_share:
            raise ValueError(
                f"train.online.replay.prioritized, hindsight_share: {self.config.algo_name} learns "
                "from the steps of the round and keeps no replay; leave both out"
            )
        if train.data and demos is None:
            log.warning(f"{self.config.algo_name} learns from its own steps alone, not train.data")
        window = Window(train.frame_stack)
        return Rollout(store, store.obs_keys, window, seed=train.seed, demos=demos)

    def _make_replay(self, num_envs: int) -> Replay:
        train = self.config.train
        options = train.online.replay
        self._check_replay(num_envs)
        if not options.saved:
            log.info(
                "train.online.replay.saved is false: checkpoints hold no steps, and a resumed run "
                "collects new ones before it learns, so that its results differ"
            )
        # An end may follow every step.
        capacity = min(options.capacity, 2 * (train.num_steps or options.capacity))
        store = self._make_store(num_envs, capacity, "train.online.replay.capacity")
        priorities = None
        if options.prioritized:
            exponents = options.priority_exponent, options.correction_exponent
            priorities = Priorities(len(store.is_step), *exponents)
        return Replay(
            store,
            store.obs_keys,
            Window(train.frame_stack, train.seq_length),
            train.seed,
            self._load_demos(),
            options.demo_share,
            priorities,
            self._make_hindsight() if options.hindsight_share else None,
        )

    def _check_replay(self, num_envs: int) -> None:
        """Refuse what the algorithm cannot learn from."""
        name, train = self.config.algo_name, self.config.train
        online, share = train.online, train.online.replay.demo_share
        capacity = online.replay.capacity
        least = num_envs * (train.frame_stack + train.seq_length)
        if capacity < least:
            raise ValueError(
                f"train.online.replay.capacity: {capacity} observations of {num_envs} environments "
                f"hold no step to learn from; keep at least {least}, better thousands"
            )
        if online.replay.prioritized and not hasattr(self.alg, "td_errors"):
            raise ValueError(
                f"train.online.replay.prioritized: {name} does not say how wrong its values were; "
                "set it to false"
            )
        if self.alg.NEEDS_DEMOS and share is not None and not round(share * train.batch_size):
            raise ValueError(
                f"train.online.replay.demo_share: {name} imitates demonstrations, and a batch of "
                f"{train.batch_size} has none of them; make it larger"
            )
        if "returns" in self.alg.NEEDS and (online.normalize_rewards or online.clip_rewards):
            raise ValueError(
                f"train.online.normalize_rewards, clip_rewards: {name} learns from the returns of "
                "episodes, which are sums of the rewards as they are; set both to false"
            )

    def _make_hindsight(self) -> Hindsight:
        if "returns" in self.alg.NEEDS:
            raise ValueError(
                f"train.online.replay.hindsight_share: {self.config.algo_name} learns from the "
                "returns of episodes, which are not known of other goals; set it to 0"
            )
        judge = judge_of(self.env_args, self.alg.obs_spec.keys("obs"))

        def learned(achieved: np.ndarray, desired: np.ndarray) -> Any:
            rewards, terminated = judge(achieved, desired)
            return self._learned_rewards(rewards), terminated

        return Hindsight(self.config.train.online.replay.hindsight_share, learned)

    def _load_demos(self) -> SequenceDataset | None:
        """The demonstrations of ``train.data``, in the units of what is collected."""
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
        # Else their rewards, if there are any, are not learned from.
        if not (self.alg.NEEDS_DEMOS or self.alg.ASKS_EXPERT):
            self.alg.inspect_data(demos.values)
        for key, shape in demos.obs_shapes.items():
            shown = self.envs.observation_space[key].shape
            if shape != shown:
                raise ValueError(
                    f"{demos.hdf5_path}: {key} has the shape {[*shape]}, but the environment shows "
                    f"{[*shown]}; name demonstrations of the same task (train.data)"
                )
        return demos

    def as_learned(self, stepped: Any) -> Any:
        """A step with what training makes of its rewards, as of those in data."""
        if not self._changes_rewards:
            return stepped
        return stepped._replace(rewards=self._learned_rewards(stepped.rewards))

    def _learned_rewards(self, rewards: np.ndarray) -> np.ndarray:
        options = self._rewards.to_dict()
        return transformed(rewards, np.array([]), options, self.reward_stats)[0]


def _make_envs(config: Config, env_args: Mapping[str, Any], num_envs: int | None) -> VectorEnv:
    online = config.train.online
    return make_vector_env(
        env_args,
        num_envs or online.num_envs,
        config.train.seed,
        horizon=online.horizon,
        obs_keys=seen_by(config),
        terminate_on_success=online.terminate_on_success,
        timeout=online.timeout,
    )


def _given(envs: Envs, config: Config) -> VectorEnv:
    online = config.train.online
    if online.wrappers and not getattr(envs, "env_args", {}).get("wrappers"):
        raise ValueError(
            "train.online.wrappers: environments that are given are not put into wrappers; give "
            "them in these, or name the environment instead (experiment.env)"
        )
    if isinstance(envs, gymnasium.vector.VectorEnv):
        named = env_args_of(config) if config.experiment.env else None
        ends = {"horizon": online.horizon, "terminate_on_success": online.terminate_on_success}
        return GymnasiumVector(envs, config.train.seed, named, seen_by(config), **ends)
    if not isinstance(envs, VectorEnv):
        raise ValueError(
            f"envs: {envs} is not a vector of environments; give one of gymnasium.make_vec, or "
            "name an environment (experiment.env)"
        )
    return envs
