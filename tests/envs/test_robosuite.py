"""The real simulator."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from offrl.acting.episode import rollout
from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.experts import ExpertPolicy, lift
from offrl.envs.rendering import working_backend

pytestmark = pytest.mark.slow

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": ROBOSUITE_KWARGS}


@pytest.fixture(scope="module")
def env():
    env = make_env(LIFT)
    yield env
    env.close()


def first_state(env, seed):
    obs, _ = env.reset(seed=seed)
    state = env.get_state()
    return state["states"], state["model"], obs


def test_it_follows_gymnasium(env):
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs) and info == {}
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert isinstance(reward, float) and terminated is False and truncated is False
    assert env.is_success() == {"task": False} and info["success"] is False
    assert env.serialize()["env_name"] == "Lift"


def test_the_same_seed_is_the_same_state_whatever_ran_before(env):
    fresh = make_env(LIFT)
    expected = {seed: first_state(fresh, seed) for seed in (3, 1, 2)}
    for seed in (1, 2, 3):
        np.random.seed(seed)  # global state has no say
        for _ in range(seed):
            env.step(env.action_space.sample())
        states, model, obs = first_state(env, seed)
        np.testing.assert_array_equal(states, expected[seed][0])
        assert model == expected[seed][1]
        for key, value in obs.items():
            np.testing.assert_array_equal(value, expected[seed][2][key])
    fresh.close()


def test_different_seeds_differ_in_position_size_and_joints(env):
    seen = []
    for seed in range(3):
        _, _, obs = first_state(env, seed)
        seen.append((obs["object"][:2], env._env.cube.size, obs["robot0_joint_pos"]))
    for values in zip(*seen, strict=True):
        assert not np.allclose(values[0], values[1]) and not np.allclose(values[1], values[2])


@pytest.mark.parametrize(
    "task", ["PickPlaceCan", pytest.param("NutAssemblySquare", marks=pytest.mark.thorough)]
)
def test_where_an_object_is_from_the_hand_is_true_from_the_first_look_on(task):
    def is_true(obs):
        offset = obs["object"][7:10] - obs["robot0_eef_pos"]
        return np.linalg.norm(obs["object"][:3]) == pytest.approx(np.linalg.norm(offset), abs=1e-4)

    env = make(task)
    first, _ = env.reset(seed=0)
    assert is_true(first)
    state = env.get_state()["states"]
    for _ in range(5):
        obs = env.step(np.full(7, 0.5))[0]
    assert np.linalg.norm(obs["robot0_eef_pos"] - first["robot0_eef_pos"]) > 0.02
    assert is_true(env.reset_to({"states": state}))
    assert is_true(env.reset(seed=1)[0])


def make(task, **kwargs):
    return make_env({"env_name": task, "type": 1, "env_kwargs": ROBOSUITE_KWARGS | kwargs})


def test_a_scene_is_an_environments_own_whatever_was_made_since(env):
    """MuJoCo writes out the model that it compiled last."""
    states, scene, _ = first_state(env, 3)
    env.reset(seed=3)
    stack = make("Stack")
    assert env.get_state()["model"] == scene
    for reset in (
        lambda: stack.reset(seed=0),
        lambda: env.reset_to({"model": scene, "states": states}),
        lambda: make("Lift").reset(seed=1),
    ):
        reset()
        assert "cubeA_main" in stack.get_state()["model"]
        assert "cube_main" in env.get_state()["model"]
    stack.close()


def test_a_scene_that_is_not_compiled_anew_is_an_environments_own():
    def lines(model):  # what is compiled from a model's text is given statistics
        return [line for line in model.splitlines() if line.strip() and "<statistic" not in line]

    door = make("Door", hard_reset=False)
    scenes = [first_state(door, seed)[1] for seed in (0, 1)]
    assert scenes[0] != scenes[1]  # moved within the same model
    make("Lift")
    assert lines(first_state(door, 0)[1]) == lines(scenes[0])


def test_the_shipped_demonstrations_play_back(env):
    """From a stored state the stored actions lead through the stored states and lift the cube."""
    with h5py.File("datasets/lift/low_dim.hdf5") as file:
        for name in ("demo_0", "demo_57"):
            demo = file[f"data/{name}"]
            model = demo.attrs["model_file"]
            assert 'file="robosuite/' in model and 'file="/' not in model
            obs = env.reset_to({"model": model, "states": demo["states"][0]})
            for step, action in enumerate(demo["actions"]):
                np.testing.assert_allclose(
                    obs["object"], demo["obs/object"][step], atol=1e-4, err_msg=f"{name} {step}"
                )
                obs, *_ = env.step(action)
            assert env.is_success()["task"]


@pytest.mark.thorough
def test_the_expert_lifts_the_cube(env):
    policy = ExpertPolicy(lift, noise=0.1)
    stats = [rollout(policy, env, horizon=100, seed=s) for s in range(5)]
    assert np.mean([s["Success_Rate"] for s in stats]) >= 0.8
    assert max(s["Horizon"] for s in stats if s["Success_Rate"]) < 60


@pytest.mark.thorough
def test_it_works_without_any_graphics_library(tmp_path):
    """Libraries that cannot be loaded, as on a machine that has none."""
    for library in ("EGL", "GL", "OpenGL", "OSMesa"):
        for version in ("", ".0", ".1", ".6", ".7", ".8", ".9"):
            (tmp_path / f"lib{library}.so{version}").write_text("not a library")
    environ = {k: v for k, v in os.environ.items() if k != "MUJOCO_GL"}
    environ["LD_LIBRARY_PATH"] = str(tmp_path)
    script = (
        "from offrl.envs import make_env\n"
        "from offrl.envs.rendering import working_backend\n"
        f"env = make_env({LIFT!r})\n"
        "obs, _ = env.reset(seed=0)\n"
        "env.step([0.0] * 7)\n"
        "print('backend', working_backend())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "backend None\n"
    assert result.stderr == ""  # no warnings of robosuite's about its macros either


@pytest.mark.thorough
@pytest.mark.skipif(working_backend() is None, reason="no rendering library on this machine")
def test_it_renders():
    script = (
        "from offrl.envs import make_env\n"
        f"env = make_env({LIFT!r})\n"
        "frames = []\n"
        "for seed in (0, 1):\n"
        "    env.reset(seed=seed)\n"
        "    frames.append(env.render())\n"
        "assert frames[0].shape == (384, 384, 3) and frames[0].std() > 10\n"
        "assert (frames[0] != frames[1]).any()\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"MUJOCO_GL": working_backend()},
        check=True,
    )


@pytest.mark.skipif(working_backend() is None, reason="no rendering library on this machine")
def test_a_mark_is_seen_where_it_is_and_by_nobody_else():
    script = (
        "import numpy as np\n"
        "from offrl.envs import make_env\n"
        f"env = make_env({LIFT!r})\n"
        "obs, _ = env.reset(seed=0)\n"
        "before, plain = env.get_state()['states'], env.render()\n"
        "position = obs['object'][:3] + [0.05, 0.1, 0.05]\n"
        "env.mark([position])\n"
        "marked = env.render()\n"
        "(y, x), size = np.nonzero((marked != plain).any(-1)), len(plain)\n"
        "model, data = env.base_env.sim.model._model, env.base_env.sim.data._data\n"
        "camera = model.camera('agentview').id\n"
        "to_camera = data.cam_xmat[camera].reshape(3, 3).T\n"
        "right, up, back = to_camera @ (position - data.cam_xpos[camera])\n"
        "focal = size / 2 / np.tan(np.radians(model.cam_fovy[camera]) / 2)\n"
        "expected = size / 2 + focal / -back * np.array([right, -up])\n"
        "assert np.abs([x.mean(), y.mean()] - expected).max() < 2\n"
        "radius = focal / -back * 0.02\n"
        "assert radius > 5 and abs(len(x) / (np.pi * radius**2) - 1) < 0.2\n"
        "red, green, blue = marked[y, x].mean(0)\n"
        "assert green > 200 > 150 > max(red, blue)\n"
        "np.testing.assert_array_equal(env.get_state()['states'], before)\n"
        "obs = env.step(np.zeros(7))[0]\n"
        "env.reset(seed=0)\n"
        "np.testing.assert_array_equal(env.render(), plain)\n"
        "again = env.step(np.zeros(7))[0]\n"
        "for key in obs:\n"
        "    np.testing.assert_array_equal(obs[key], again[key])\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"MUJOCO_GL": working_backend()},
        check=True,
    )
