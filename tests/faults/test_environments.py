"""Environments that cannot be made or break the contract, policies that give what no simulator
should get: one clear sentence each."""

from contextlib import closing
from functools import partial
from itertools import product

import gymnasium
import numpy as np
import pytest
from faulty_env import FaultyEnv, faulty_args
from toy_env import ToyEnv, WalkHome, toy_args

from offrl import RolloutPolicy, Trainer
from offrl.acting import EpisodeRequest, Policy, rollout
from offrl.acting.episode import run_episode
from offrl.envs import make_env
from offrl.envs.robomimic_face import RobomimicFace
from offrl.envs.vector import GymnasiumVector, ListVector, Setup
from offrl.envs.workers import EnvPool
from offrl.evaluation.evaluate import evaluate
from offrl.online import Agent, Environment
from offrl.registry import ENVS

TOY = "toy_env:Toy-v0"
CANNOT_BE_MADE = [
    (None, "env_args .*env_name.*None"),
    ({}, "env_name.*experiment.env"),
    ({"env_name": 5}, "env_name.*experiment.env"),
    ({"env_name": TOY, "env_kwargs": [1]}, r"env_args of 'toy_env:Toy-v0': env_kwargs .*\[1\]"),
    ({"env_name": TOY, "env_kwargs": {"env_name": "Lift"}}, "env_kwargs .*'env_name': 'Lift'"),
    (toy_args(colour="red"), "'colour'.*env_kwargs"),
    (toy_args(id=5), "Toy-v0.*'id'.*env_kwargs"),
    ({"env_name": "Missing-v0"}, "gymnasium .*'Missing-v0'"),
    ({"env_name": "Hopper-v99"}, "gymnasium .*'Hopper-v99'.*v99"),
    ({"env_name": "not a name!"}, "gymnasium .*'not a name!'"),
    ({"env_name": "no_such_module:Toy-v0"}, "--module no_such_module"),
    ({"env_name": TOY, "type": 77}, "env_args type 77"),
    ({"env_name": TOY, "type": "robosuit"}, "'robosuit'.*'robosuite'"),
    ({"env_name": TOY, "type": [1]}, r"env_args type \[1\]"),
    ({"env_name": "Lyft", "type": 1}, "robosuite .*'Lyft'.*Lift"),
    ({"env_name": "Lift", "type": 1, "env_kwargs": {"colour": 5}}, "'Lift'.*'colour'.*env_kwargs"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("env_args", "words"), CANNOT_BE_MADE)
def test_an_environment_that_cannot_be_made_says_what_to_mend(env_args, words):
    with pytest.raises((ValueError, ImportError), match=words) as raised:
        make_env(env_args)
    assert "\n" not in str(raised.value)


def test_a_mistake_in_the_description_is_said_once_and_at_once(caplog):
    with EnvPool(toy_args(colour="red"), 2) as pool:
        with pytest.raises(ValueError, match="'colour'") as raised:
            pool.check(WalkHome())
        assert "worker.py" not in str(raised.value) and not caplog.records  # no further attempt


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset returns obs alone", "reset .*dict.*obs, info"),
        ("step returns four", "step: .*5.*4.*obs, reward"),
        ("reward is NaN", "reward .*NaN"),
        ("success is text", "success .*'no'"),
        ("success is NaN", "success .*nan"),
    ],
)
def test_an_environment_that_breaks_the_contract_is_told_how(fault, words):
    with pytest.raises(ValueError, match=words):
        rollout(WalkHome(), make_env(faulty_args(fault)), horizon=3)


def stepped_in(way, says):
    """The reward and the flags of the first step, wherever somebody makes one."""
    args = faulty_args(says=says)
    if way == "list":
        with closing(ListVector(Setup(args, 1, 0))) as vector:
            vector.reset()
            step = vector.step(np.zeros((1, 2)))
            return step.rewards[0], step.terminated[0], step.truncated[0]
    if way == "vector":
        make = partial(gymnasium.make, args["env_name"], **args["env_kwargs"])
        with closing(GymnasiumVector(gymnasium.vector.SyncVectorEnv([make]), 0)) as vector:
            vector.reset()
            step = vector.step(np.zeros((1, 2)))
            return step.rewards[0], step.terminated[0], step.truncated[0]
    if way == "by hand":
        env = Environment({"algo_name": "ppo", "experiment": {"env": TOY}})
        env.update_env(lambda _: FaultyEnv(says=says))
    else:
        env = {"worker": make_env, "robomimic": lambda x: RobomimicFace(make_env(x))}[way](args)
    env.reset(seed=0)
    if way == "worker":
        result = run_episode(env, EpisodeRequest(0, 1, record=True), lambda *_: np.zeros(2))
        return result.total_reward, result.trajectory["dones"][0], False
    _, reward, *flags, _ = env.step(np.zeros(2))
    return reward, *flags


WAYS = ["worker", "list", "vector", "by hand", "robomimic"]


@pytest.mark.filterwarnings("ignore")  # gymnasium's checks say some of it, once
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "says",
    [
        *({"terminated": x} for x in ("False", np.nan, 2, None, [True, False])),
        *({"truncated": x} for x in ("no", -1, 0.5)),
        *({"reward": x} for x in ("1.5", None, [1.0, 2.0], np.nan, -np.inf, 1j)),
    ],
    ids=str,
)
def test_flags_and_rewards_of_no_meaning_are_refused_wherever_steps_are_made(way, says):
    with pytest.raises(ValueError, match=next(iter(says))):
        stepped_in(way, says)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("yes", [True, 1, 1.0, np.bool_(True), np.uint8(1), np.array(1.0)])
def test_what_is_true_may_be_of_any_kind_of_number(way, yes):
    reward, *flags = stepped_in(way, {"reward": np.array(1.5), "terminated": yes})
    assert reward == 1.5 and flags[0] == 1


def test_by_hand_a_script_says_what_it_means():
    agent = Agent({"algo_name": "ppo", "experiment": {"env": "CartPole-v1"}})
    with pytest.raises(ValueError, match="reward.*'1.5'"):
        agent.reward = "1.5"
    with pytest.raises(ValueError, match="terminated.*'no'"):
        agent.reset("no")


class Looking(WalkHome):
    """It looks at the position alone."""

    obs_keys = ("position",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("position is NaN", "the environment's observation 'position' is NaN or infinite"),
        ("position is text", "the environment's observation 'position' is <U13, no numbers"),
        ("speed, which nobody looks at, is NaN", None),
        ("reset returns obs alone", "the environment's reset gave dict"),
    ],
)
def test_observations_that_no_policy_can_act_on_never_reach_one(fault, words):
    with EnvPool(faulty_args(fault), 1) as pool:
        (result,) = pool.run([EpisodeRequest(0, 4)], Looking())
    assert (result.error or "").startswith(words or "") and bool(result.error) == bool(words)


@pytest.mark.slow
def test_nan_from_a_simulator_is_no_evaluation_of_a_trained_policy(small_config):
    with EnvPool(faulty_args("position is NaN"), 1) as pool:
        for frame_stack, gmm in product((1, 2), (False, True)):
            algo = {"gmm": {"enabled": gmm, "low_noise_eval": False}}
            config = small_config({"train": {"frame_stack": frame_stack}, "algo": algo})
            policy = RolloutPolicy(Trainer(config).algo)
            (result,) = evaluate(policy, pool, [EpisodeRequest(0, 4)])
            assert result.error == "the environment's observation 'position' is NaN or infinite"


class Giving(Policy):
    def __init__(self, *actions):
        self.actions = actions

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        return {env: self.actions[0] for env in obs_by_env}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gymnasium", "robosuite"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_from_a_policy_never_reaches_a_simulator(kind, bad):
    env_args, size = (toy_args(), 2)
    if kind == "robosuite":
        robot = {"robots": "Panda", "use_camera_obs": False}
        env_args, size = {"env_name": "Lift", "type": 1, "env_kwargs": robot}, 7
    env = make_env(env_args)
    stepped = []
    env.step = lambda action: stepped.append(action)
    with pytest.raises(ValueError, match=rf"\[{bad} {bad}"):
        rollout(Giving(np.full(size, bad)), env, horizon=3)
    assert not stepped


@pytest.mark.parametrize(
    ("env_args", "action"),
    [
        (toy_args(), np.zeros(1)),  # which numpy would broadcast
        (toy_args(), np.zeros(7)),
        ({"env_name": "CartPole-v1"}, np.zeros(2)),
    ],
)
def test_actions_of_another_shape_are_refused(env_args, action):
    with pytest.raises(ValueError, match=r"shape \[.\]"):
        rollout(Giving(action), make_env(env_args), horizon=3)


def test_actions_of_the_right_kind_pass():
    assert rollout(Giving(np.int64(1)), make_env({"env_name": "CartPole-v1"}), 3)["Horizon"] == 3
    assert rollout(Giving(np.zeros((1, 2))[0]), make_env(toy_args()), 3, seed=0)["Horizon"] >= 1


def test_what_is_no_image_is_no_frame():
    with EnvPool(faulty_args("render gives text"), 1) as pool:
        (result,) = pool.run([EpisodeRequest(0, 4, frame_every=1)], WalkHome())
    assert result.error is None and "render() gave str, not an image" in result.no_video


def test_observations_of_an_own_environment_type_must_be_dicts():
    class Bare(ToyEnv):
        def __init__(self, env_name, env_kwargs):
            super().__init__()

        def _observe(self):
            return np.zeros(3)

    from offrl.acting.episode import check_obs

    ENVS.register("bare")(Bare)
    obs, _ = make_env({"env_name": "x", "type": "bare"}).reset(seed=0)
    with pytest.raises(ValueError, match="ndarray"):
        check_obs(obs, ["position"])
