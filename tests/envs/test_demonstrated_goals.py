"""Goals that the demonstrators of robosuite's and Meta-World's tasks reach, in the simulators."""

import os
import subprocess
import sys

import numpy as np
import pytest
from test_fast_simulation import differing, simulated

from offrl.acting import Policy
from offrl.acting.episode import Misfit
from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.experts import expert
from offrl.envs.metaworld import MetaworldEnv
from offrl.envs.rendering import working_backend
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.registry import ENVS, EXPERTS

robosuite = pytest.mark.slow


def args(task, **kwargs):
    if task.endswith("-v3"):
        return {"env_name": task, "type": "metaworld", "env_kwargs": kwargs}
    return {"env_name": task, "type": 1, "env_kwargs": ROBOSUITE_KWARGS | kwargs}


def goal_of(env, seed):
    env.reset(seed=seed)
    return env.get_goal()


# -- what it is -----------------------------------------------------------------------------------


@robosuite
def test_the_goal_of_lift_is_a_lifted_cube():
    env = make_env(args("Lift"))
    goal = goal_of(env, seed=3)
    obs, _ = env.reset(seed=3)
    assert env.observation_space.contains(goal)
    assert goal["object"][2] > 0.84 > obs["object"][2]  # metres; 4 cm above the table
    np.testing.assert_allclose(goal["robot0_eef_pos"], goal["object"][:3], atol=0.02)
    assert not env.is_success()["task"]


def test_the_goal_of_push_is_the_puck_at_its_target():
    env = make_env(args("push-v3"))
    for seed in range(3):
        goal = goal_of(env, seed)
        first, _ = env.reset(seed=seed)
        target = first["flat"][-3:]
        assert env.observation_space.contains(goal) and goal["state"].shape == (36,)
        assert np.linalg.norm(goal["state"][4:7] - target) < 0.05
        assert np.linalg.norm(first["state"][4:7] - target) > 0.08
        np.testing.assert_array_equal(goal["flat"], [*goal["state"], *target])


def test_the_goal_of_reach_is_the_hand_at_its_target():
    """Its task measures at the fingertips, some centimetres from what is observed of the hand."""
    env = make_env(args("reach-v3"))
    for seed in range(3):
        goal = goal_of(env, seed)
        first, _ = env.reset(seed=seed)
        before, after = (np.linalg.norm(o["state"][:3] - o["flat"][-3:]) for o in (first, goal))
        assert after < 0.07 < 0.1 < before


TASKS = [pytest.param("Lift", marks=pytest.mark.thorough), "push-v3", "reach-v3"]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_is_the_same_goal_whatever_ran_before(task):
    used, fresh = make_env(args(task)), make_env(args(task))
    goals = [goal_of(used, seed) for seed in (5, 6, 5)]
    used.step(used.action_space.sample())
    for again in (goals[2], used.get_goal(), goal_of(fresh, 5)):
        assert differing(goals[0], again) == []
    key = "state" if task.endswith("-v3") else "object"
    assert not np.allclose(goals[0][key], goals[1][key])


@pytest.mark.thorough
def test_a_goal_has_what_the_policy_does_not_observe():
    env, keys = make_env(args("Lift")), ["robot0_joint_pos"]
    expected = goal_of(env, seed=0)
    env.observe_only(keys)
    assert differing(goal_of(env, seed=0), expected) == []
    assert list(env.step(np.zeros(7))[0]) == keys


# -- who is not disturbed -------------------------------------------------------------------------


def everything(env):
    if hasattr(env, "base_env"):
        return simulated(env) | env.get_state()
    data = env.unwrapped.data
    names = "time qpos qvel act qacc_warmstart ctrl mocap_pos xpos".split()
    generator = str(env.unwrapped.np_random.bit_generator.state)
    return {name: getattr(data, name) for name in names} | {"random": generator}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kwargs"),
    [
        pytest.param("Lift", {}, marks=robosuite),
        pytest.param("Lift", {"offrl_fast": False}, marks=pytest.mark.thorough),
        ("push-v3", {}),
        ("reach-v3", {}),
    ],
)
def test_an_episode_goes_on_as_if_nobody_had_asked(task, kwargs):
    asked, left = make_env(args(task, **kwargs)), make_env(args(task, **kwargs))
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    for seed in (0, 1, None):
        if seed is None:  # what resets draw next
            assert differing(asked.reset()[0], left.reset()[0]) == []
        else:
            assert differing(asked.reset(seed=seed)[0], left.reset(seed=seed)[0]) == []
        rng = np.random.default_rng(0)
        for step in range(12):
            if step % 6 == 0 and seed is not None:
                asked.get_goal()
            action = rng.uniform(-1, 1, asked.action_space.shape)
            (obs, *came_of_it), (expected, *as_expected) = asked.step(action), left.step(action)
            assert differing(obs, expected) == []
            assert str(came_of_it) == str(as_expected)
        assert differing(everything(asked), everything(left)) == []
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.thorough
def test_a_constant_scene_stays_an_environments_own(monkeypatch):
    """Its scene is compiled once for all episodes."""
    monkeypatch.setitem(EXPERTS._entries, "NutAssemblyRound", lambda obs: np.zeros(7))
    monkeypatch.setattr(expert, "LONGEST", 5)
    asked, left = make_env(args("NutAssemblyRound")), make_env(args("NutAssemblyRound"))
    for seed in range(4):
        assert differing(asked.reset(seed=seed)[0], left.reset(seed=seed)[0]) == []
        with pytest.raises(Misfit, match=f"NutAssemblyRound: .*seed {seed}"):
            asked.get_goal()
        for _ in range(3):
            assert differing(asked.step(np.ones(7))[0], left.step(np.ones(7))[0]) == []
        assert differing(everything(asked), everything(left)) == []


@robosuite
@pytest.mark.skipif(working_backend() is None, reason="no rendering library on this machine")
@pytest.mark.thorough  # the pictures take seconds
def test_pictures_are_the_same():
    cameras = {"use_camera_obs": True, "camera_heights": 32, "camera_widths": 32}
    script = (
        "import numpy as np\n"
        "from offrl.envs import make_env\n"
        f"env_args = {args('Lift', **cameras)!r}\n"
        "asked, left = make_env(env_args), make_env(env_args)\n"
        "obs = [env.reset(seed=0)[0] for env in (asked, left)]\n"
        "frame = asked.render(size=64)\n"
        "goal = asked.get_goal()\n"
        "assert (asked.render(size=64) == frame).all() and frame.std() > 10\n"
        "for _ in range(3):\n"
        "    obs = [env.step(np.ones(7))[0]['agentview_image'] for env in (asked, left)]\n"
        "    assert (obs[0] == obs[1]).all() and obs[0].std() > 10\n"
        "image = goal['agentview_image']\n"
        "assert image.std() > 10 and (image != obs[0]).any()\n"
        "asked.close()\n"
        "assert left.reset(seed=0)[0]['agentview_image'].std() > 10\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"MUJOCO_GL": working_backend()},
        check=True,
    )


@pytest.mark.slow
def test_the_second_environment_is_made_when_needed_and_closed_with_the_first(monkeypatch):
    made, closed = [], []

    class Counted(MetaworldEnv):
        def __init__(self, *given):
            made.append(self)
            super().__init__(*given)

        def close(self):
            closed.append(self)
            super().close()

    env = Counted("reach-v3", {})
    env.reset(seed=0)
    env.step(np.zeros(4))
    assert made == [env]
    for seed in range(2):
        goal_of(env, seed)
    assert len(made) == 2
    env.close()
    assert {*map(id, closed)} == {*map(id, made)}
    assert differing(goal_of(env, 0), goal_of(make_env(args("reach-v3")), 0)) == []


# -- where there is none --------------------------------------------------------------------------


@robosuite
def test_without_a_demonstrator_a_sentence_says_so_until_one_is_registered(monkeypatch):
    env = make_env(args("NutAssemblyRound"))
    env.reset(seed=0)
    with pytest.raises(Misfit, match="NutAssemblyRound .*offrl.registry.EXPERTS.*get_goal"):
        env.get_goal()
    monkeypatch.setitem(EXPERTS._entries, "NutAssemblyRound", lambda obs: np.zeros(3))
    with pytest.raises(Misfit, match="NutAssemblyRound: .*7.*3"):
        env.get_goal()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_without_a_seed_there_is_no_goal(task):
    env = make_env(args(task))
    with pytest.raises(Misfit, match=f"{task}: .*reset"):
        env.get_goal()
    env.reset(seed=0)
    env.reset()
    with pytest.raises(Misfit, match=f"{task}: .*reset"):
        env.get_goal()


@pytest.mark.thorough
def test_a_state_that_was_set_has_no_goal():
    env = make_env(args("Lift"))
    env.reset(seed=0)
    state = env.get_state()
    for part in (state, {"states": state["states"]}):
        env.reset(seed=0)
        env.reset_to(part)
        with pytest.raises(Misfit, match="Lift: .*reset"):
            env.get_goal()


@pytest.mark.slow
def test_a_demonstrator_that_fails_is_said(monkeypatch):
    env = make_env(args("push-v3"))
    env.reset(seed=2)
    monkeypatch.setattr(ENVS["metaworld"], "expert_of", lambda task: lambda obs: np.zeros(4))
    with pytest.raises(Misfit, match="push-v3: .*seed 2"):
        env.get_goal()


# -- through worker processes ---------------------------------------------------------------------


class HandToGoal(Policy):
    """Move the hand to where the goal has it."""

    needs_goal = True

    def __init__(self, hand, size):
        self.obs_keys, self.size = [hand], size

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        (hand,) = self.obs_keys
        moves = {env: goal_by_env[env][hand][:3] - obs[hand][:3] for env, obs in obs_by_env.items()}
        return {
            env: np.clip([*10 * move, *np.zeros(self.size - 3)], -1, 1)
            for env, move in moves.items()
        }


@pytest.mark.slow
def test_a_policy_that_needs_goals_reaches_them():
    requests = [EpisodeRequest(seed, horizon=100) for seed in range(4)]
    with EnvPool(args("reach-v3"), 2) as pool:
        results = list(pool.run(requests, HandToGoal("state", 4)))
    assert [(r.success, r.error) for r in results] == [(True, None)] * 4


@pytest.mark.thorough
def test_an_evaluation_in_robosuite_gets_goals_and_gives_up_at_once_without(caplog):
    policy = HandToGoal("robot0_eef_pos", 7)
    requests = [EpisodeRequest(seed, horizon=40) for seed in range(2)]
    with EnvPool(args("Lift"), 1) as pool:
        results = list(pool.run(requests, policy))
    assert [(r.error, r.length) for r in results] == [(None, 40)] * 2
    with (
        EnvPool(args("NutAssemblyRound"), 1) as pool,
        pytest.raises(ValueError, match="'NutAssemblyRound': .*offrl.registry.EXPERTS"),
    ):
        pool.check(policy)
    assert not caplog.records


@pytest.mark.thorough
def test_simulators_know_the_demonstrators_of_the_module_that_the_type_names(tmp_path, monkeypatch):
    (tmp_path / "stacking.py").write_text(
        "import numpy as np\n"
        "from offrl.envs.robosuite import RobosuiteEnv\n"
        "from offrl.registry import ENVS, EXPERTS\n"
        "ENVS.register('robosuite_with_experts')(RobosuiteEnv)\n"
        "EXPERTS.register('NutAssemblyRound')(lambda obs: np.zeros(7))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OFFRL_MODULES", "stacking")
    with (
        EnvPool(args("NutAssemblyRound") | {"type": "stacking.robosuite_with_experts"}, 1) as pool,
        pytest.raises(ValueError, match="NutAssemblyRound: .*seed 0"),
    ):
        pool.check(HandToGoal("robot0_eef_pos", 7))
