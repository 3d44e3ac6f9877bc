"""Environments as scripts for robomimic call them."""

import copy
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.rendering import working_backend
from offrl.envs.robomimic_face import RobomimicFace

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": ROBOSUITE_KWARGS}


def run_as_robomimic_does(env, horizon):
    """Its loop over an episode: the actions, and what came of them."""
    obs, total, success = env.reset(), 0.0, {key: False for key in env.is_success()}
    steps = []
    for _ in range(horizon):
        action = np.zeros(env.action_dimension)
        obs, reward, done, info = env.step(action)
        assert isinstance(info, dict) and isinstance(reward, float) and isinstance(done, bool)
        total += reward
        steps.append(obs)
        success = {key: success[key] or is_so for key, is_so in env.is_success().items()}
        if done or success["task"]:
            break
    return steps, total, success


@pytest.fixture(params=["plain", "wrapped", "of make_env"])
def cart_pole(request):
    if request.param == "of make_env":
        return RobomimicFace(make_env({"env_name": "CartPole-v1", "type": 2}))
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    return RobomimicFace(env.unwrapped if request.param == "plain" else env)


def test_gymnasiums_environments_return_four_values_and_dicts(cart_pole):
    first = cart_pole.reset(seed=3)
    np.testing.assert_array_equal(first["flat"], cart_pole.reset(seed=3)["flat"])
    assert first["flat"].shape == (4,) and not cart_pole.is_done()
    done, rewards = False, []
    while not done:
        assert cart_pole.is_done() is False
        obs, reward, done, _ = cart_pole.step(0)
        rewards.append(reward)
        assert cart_pole.get_observation()["flat"] is obs["flat"]
    assert 5 < len(rewards) < 20 and cart_pole.is_done() and cart_pole.get_reward() == 1.0
    assert abs(cart_pole.get_observation()["flat"][2]) > 0.2  # it fell
    cart_pole.reset()
    assert not cart_pole.is_done()


def test_what_it_is_is_what_a_dataset_stores(cart_pole):
    assert (cart_pole.type, cart_pole.action_dimension) == (2, 2)
    assert cart_pole.rollout_exceptions == () and cart_pole.is_success() == {"task": False}
    if cart_pole.name != "CartPole-v1":  # one that no registry made
        assert cart_pole.name == "CartPoleEnv"
        return
    again = RobomimicFace(make_env(cart_pole.serialize()))
    assert again.name in repr(again) and again.version == cart_pole.version
    cart_pole.serialize()["env_kwargs"]["render_mode"] = "none"  # a copy
    assert cart_pole.serialize()["env_kwargs"].get("render_mode") in ("rgb_array", None)


def test_truncation_is_an_end():
    env = RobomimicFace(gymnasium.make("Pendulum-v1", max_episode_steps=3))
    env.reset()
    dones = [env.step(np.zeros(1))[2] for _ in range(3)]
    assert dones == [False, False, True] and env.is_done() and env.action_dimension == 1


def test_attributes_are_those_of_the_environment_and_its_wrappers(cart_pole):
    assert cart_pole.gravity == 9.8 and cart_pole.env.gravity == 9.8  # the pole's
    assert cart_pole.action_space.n == 2
    with pytest.raises(AttributeError, match="speed_of_light"):
        cart_pole.speed_of_light  # noqa: B018
    assert copy.deepcopy(cart_pole).gravity == 9.8


class Reporting(gymnasium.Wrapper):
    """An environment of a user's own that knows success, and nothing else of offrl's."""

    def is_success(self):
        return {"task": True}


def test_an_environment_that_knows_success_alone_is_adapted_too():
    env = RobomimicFace(Reporting(gymnasium.make("CartPole-v1")))
    assert env.reset()["flat"].shape == (4,) and env.name == "CartPole-v1"
    assert env.is_success() == {"task": True}
    with pytest.raises(NotImplementedError, match="CartPoleEnv .*get_state"):
        env.get_state()


def test_what_a_simulator_cannot_do_is_said(cart_pole):
    for call in (
        cart_pole.get_state,
        cart_pole.get_goal,
        lambda: cart_pole.reset_to({"states": np.zeros(4)}),
        lambda: cart_pole.set_goal(flat=np.zeros(4)),
    ):
        with pytest.raises(NotImplementedError, match="CartPoleEnv"):
            call()
    with pytest.raises(ValueError, match="CartPole-v1: .*reset"):
        cart_pole.get_observation()
    with pytest.raises(ValueError, match='"human".*"rgb_array"'):
        cart_pole.render(mode="depth")
    with pytest.raises(ValueError, match="render_mode"):
        env = RobomimicFace(gymnasium.make("CartPole-v1"))
        env.reset()
        env.render("rgb_array")


class Reach(gymnasium.Env):
    """With goals, and a success in ``info``."""

    observation_space = gymnasium.spaces.Dict({"hand": gymnasium.spaces.Box(-9, 9, (1,))})
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    goal = 1.0

    def reset(self, *, seed=None, options=None):
        self.hand = 0.0
        return {"hand": np.array([self.hand])}, {}

    def step(self, action):
        self.hand += float(action[0])
        return {"hand": np.array([self.hand])}, 0, False, False, {"success": self.hand >= self.goal}

    def get_state(self):
        return {"states": np.array([self.hand])}

    def reset_to(self, state):
        (self.hand,) = state["states"]
        return {"hand": np.array([self.hand])}

    def get_goal(self):
        return {"hand": np.array([self.goal])}

    def set_goal(self, hand):
        self.goal = hand


def test_goals_states_and_success_are_passed_on():
    env = RobomimicFace(gymnasium.wrappers.TimeLimit(Reach(), 10))
    env.reset()
    env.step([0.75])
    state = env.get_state()
    assert env.is_success() == {"task": False}
    env.step([0.5])
    assert env.is_success() == {"task": True}
    assert env.reset_to({"goal": {"hand": 0.5}}) is None and env.get_goal() == {"hand": 0.5}
    assert env.reset_to(state | {"goal": {"hand": 2.0}}) == {"hand": 0.75}
    assert env.get_observation() == {"hand": 0.75} and env.get_goal() == {"hand": 2.0}


@pytest.mark.slow
def test_robosuites_tasks_run_as_in_robomimic():
    env, plain = RobomimicFace(make_env(LIFT)), make_env(LIFT)
    steps, total, success = run_as_robomimic_does(env, 3)
    assert len(steps) == 3 and total == 0.0 and success == {"task": False}
    assert (env.name, env.type, env.action_dimension) == ("Lift", 1, 7)
    assert env.env.sim is env.base_env.sim

    env.reset(seed=1)
    for _ in range(3):
        before = env.step(np.full(7, 0.5))[0]
    state = env.get_state()
    for key, value in before.items():
        np.testing.assert_array_equal(env.get_observation()[key], value)
    assert not np.allclose(env.reset(seed=2)["object"], before["object"])
    np.testing.assert_allclose(env.reset_to(state)["object"], before["object"], atol=2e-3)
    np.testing.assert_array_equal(env.get_state()["states"], state["states"])
    expected = plain.reset_to(state)
    np.testing.assert_array_equal(expected["object"], env.get_observation()["object"])
    assert env.get_reward() == plain.get_reward()
    env.close()
    plain.close()


@pytest.mark.thorough
@pytest.mark.skipif(working_backend() is None, reason="no rendering library on this machine")
def test_pictures_have_the_size_and_the_camera_that_are_asked_for():
    script = (
        "import numpy as np\n"
        "from offrl.envs import make_env\n"
        "from offrl.envs.robomimic_face import RobomimicFace\n"
        f"env = RobomimicFace(make_env({LIFT!r}))\n"
        "env.reset(seed=0)\n"
        "wide = env.render(mode='rgb_array', height=64, width=96, camera_name='frontview')\n"
        "assert wide.shape == (64, 96, 3) and wide.dtype == np.uint8 and wide.std() > 10\n"
        "square = env.render(mode='rgb_array', height=64, width=64)\n"
        "assert square.shape == (64, 64, 3)\n"
        "assert env.render(mode='rgb_array').shape == (384, 384, 3)\n"
        "front = env.render(mode='rgb_array', height=64, camera_name='frontview')\n"
        "assert front.shape == square.shape and (front != square).any()\n"
        # A wider picture shows the same, and more at its sides.
        "assert np.abs(wide[:, 16:80].astype(float) - front).mean() < 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"MUJOCO_GL": working_backend()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
