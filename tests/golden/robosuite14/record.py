"""Record a few steps with an earlier robosuite, as robomimic wrote them. In its own environment:

pip install robosuite==1.4.1 "mujoco==2.3.7" "numpy==1.23.5" "numba==0.57.1" h5py
python record.py --handover .../assets/demonstrations/handover/panda_panda/demo.hdf5
gzip -9n *.hdf5
"""

import argparse
import json
from pathlib import Path

import h5py
import numpy as np
import robosuite
from robosuite.controllers import load_controller_config

HERE = Path(__file__).parent
KWARGS = {
    "has_renderer": False,
    "has_offscreen_renderer": False,
    "ignore_done": True,
    "use_object_obs": True,
    "use_camera_obs": False,
    "camera_depths": False,
    "camera_heights": 84,
    "camera_widths": 84,
    "control_freq": 20,
    "reward_shaping": False,
}


def lift(obs, step):
    """Above the cube, down, close, up."""
    way = -obs["gripper_to_cube_pos"] if step < 20 else np.zeros(3)
    if np.linalg.norm(way[:2]) > 0.01:
        way = way + [0, 0, 0.05]
    if step > 24:
        way = np.array([0, 0, 0.06])
    return [*np.clip(way * 16, -1, 1), 0, 0, 0, 1 if step >= 20 else -1]


def observed(env):
    obs = env._get_observations(force_update=True)
    kept = {k: v for k, v in obs.items() if k.startswith("robot") and "proprio" not in k}
    return {**kept, "object": obs["object-state"]}


def record(name, task, steps, act=None, **more):
    np.random.seed(0)
    config = load_controller_config(default_controller="OSC_POSE")
    kwargs = {**KWARGS, "controller_configs": config, **more}
    env = robosuite.make(task, **kwargs)
    obs = env.reset()
    text, first = env.sim.model.get_xml(), env.sim.get_state().flatten()
    # As robosuite's own recorder begins an episode.
    env.reset_from_xml_string(text)
    env.sim.reset()
    env.sim.set_state_from_flattened(first)
    env.sim.forward()
    obs = env._get_observations(force_update=True)
    actions, states, dones = [], [], []
    for step in range(steps):
        action = act(obs, step) if act else np.random.uniform(-0.5, 0.5, env.action_dim)
        actions.append(action)
        states.append(env.sim.get_state().flatten())
        obs, _, _, _ = env.step(np.array(action))
        dones.append(int(env._check_success()))
    observations = []
    for state in states:  # as robomimic gets them from states
        env.sim.set_state_from_flattened(state)
        env.sim.forward()
        observations.append(observed(env))
    env_args = {
        "env_name": task,
        "env_version": robosuite.__version__,
        "type": 1,
        "env_kwargs": kwargs,
    }
    with h5py.File(HERE / f"{name}.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo.attrs["model_file"] = text.replace(f"{Path(robosuite.__file__).parents[1]}/", "/old/")
        demo.attrs["num_samples"] = steps
        columns = {"actions": actions, "states": states, "dones": dones, "rewards": dones}
        columns |= {f"obs/{k}": [obs[k] for obs in observations] for k in observations[0]}
        for key, column in columns.items():
            demo.create_dataset(key, data=np.array(column), compression="gzip")
        file["data"].attrs["env_args"] = json.dumps(env_args)
        file["data"].attrs["total"] = steps


def shorten(path):
    """The first steps of the first demonstration that robosuite 1.3 itself brings."""
    with h5py.File(path) as whole, h5py.File(HERE / "handover_1_3.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        for key in ("actions", "states"):
            demo[key] = whole[f"data/demo_0/{key}"][:5]
        demo.attrs["model_file"] = whole["data/demo_0"].attrs["model_file"]
        demo.attrs["num_samples"] = 5
        file["data"].attrs["env_args"] = whole["data"].attrs["env_args"]
        file["data"].attrs["total"] = 5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--handover", required=True)
    shorten(parser.parse_args().handover)
    record("lift", "Lift", 40, lift, robots=["Panda"])
    record("can", "PickPlaceCan", 5, robots=["Panda"])
    record("pot", "TwoArmLift", 5, robots=["Baxter"], env_configuration="bimanual")
    record(
        "transport",
        "TwoArmTransport",
        5,
        robots=["Panda", "Panda"],
        env_configuration="single-arm-opposed",
    )
