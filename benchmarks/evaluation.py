"""Simulation and evaluation: offrl's forms of robosuite's step and reset against robosuite's own.

    python benchmarks/evaluation.py [--parts step reset playback episodes policy workers ray]

On and off (``OFFRL_FAST_SIM=0``) take turns at the same work, and must come to the same; a figure
is the median over the turns of the ratio within a turn. In ``episodes`` and ``workers`` a BC
policy, trained here for some seconds, or an untrained one, acts in the parent process, as in any
evaluation; the workers are started and warmed up before anything is timed. ``ray`` sets actors of a
Ray of this machine against processes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import alternate, machine, markdown, timed
from tqdm import tqdm

from offrl import RolloutPolicy, algo_factory, config_factory
from offrl.config.files import find_file, read_config_file
from offrl.data.formats.hdf5 import DemoFile
from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.playback import is_image, play_states
from offrl.envs.rendering import working_backend
from offrl.envs.workers import EnvPool, EpisodeRequest, pools
from offrl.evaluation.evaluate import EVALUATION_BATCH, TEST_SEEDS, evaluate
from offrl.training import Trainer

TASKS = ("Lift", "PickPlaceCan", "Stack", "Door", "NutAssemblySquare", "TwoArmLift")
STEPS = 50  # of a turn
TRAINING_STEPS = 2000
CAMERA = {
    "use_camera_obs": True,
    "camera_names": ["agentview"],
    "camera_heights": 84,
    "camera_widths": 84,
}
Work = Callable[[Any, int], Any]  # an environment and the number of the turn to what comes of it


def env_args(task: str, **kwargs: Any) -> dict[str, Any]:
    robots = ["Panda", "Panda"] if task.startswith("TwoArm") else "Panda"
    return {
        "env_name": task,
        "type": 1,
        "env_kwargs": {**ROBOSUITE_KWARGS, "robots": robots, **kwargs},
    }


@contextmanager
def switched(how: str) -> Iterator[None]:
    before = os.environ.get("OFFRL_FAST_SIM", "1")
    os.environ["OFFRL_FAST_SIM"] = {"on": "1", "off": "0"}[how]
    yield
    os.environ["OFFRL_FAST_SIM"] = before


def compare(runs: Mapping[str, Callable[[], Any]], repeats: int, warm_up: int) -> list[str]:
    """Times off and on in ms, and their ratio; ``runs`` must come to the same."""
    results: dict[str, list[Any]] = {how: [] for how in runs}
    contestants = {how: timed(lambda how=how: results[how].append(runs[how]())) for how in runs}
    seconds = alternate(contestants, repeats + warm_up, warm_up=False)
    for on, off in zip(results["on"], results["off"], strict=True):
        np.testing.assert_array_equal(on, off)
    seconds = {how: values[warm_up:] for how, values in seconds.items()}
    ratios = sorted(on / off for on, off in zip(seconds["on"], seconds["off"], strict=True))
    times = [f"{1e3 * median(seconds[how]):.4g}" for how in ("off", "on")]
    return [*times, f"{median(ratios):.3f}", f"{ratios[0]:.3f} to {ratios[-1]:.3f}"]


def simulate(task: str, work: Work, repeats: int, **kwargs: Any) -> list[str]:
    envs = {}
    for how in ("on", "off"):
        with switched(how):
            envs[how] = make_env(env_args(task, **kwargs))
        envs[how].reset(seed=0)
    turns = {how: iter(range(repeats + 3)) for how in envs}
    runs = {how: lambda how=how: work(envs[how], next(turns[how])) for how in envs}
    # The first resets find out what may be used again; the first step compiles.
    row = compare(runs, repeats, warm_up=3)
    for env in envs.values():
        env.close()
    return row


def step(env: Any, turn: int) -> Any:
    rng = np.random.default_rng(turn)
    shape = env.action_space.shape
    return [env.step(rng.uniform(-0.5, 0.5, shape))[1] for _ in range(STEPS)]


def reset(env: Any, turn: int) -> Any:
    return env.reset(seed=turn)[0]["object"]


def playback(demos: list[dict[str, Any]]) -> Work:
    def work(env: Any, turn: int) -> Any:
        seen = [moment.obs for moment in play_states(env, demos[turn % len(demos)])]
        images = [obs[key].sum() for obs in seen for key in sorted(obs) if is_image(key)]
        return [*images, env._env.sim.data.qacc_warmstart.sum()]

    return work


def lift_demos() -> list[dict[str, Any]]:
    """Episodes as they were recorded, the cube of another size in each."""
    with DemoFile(find_file("lift/low_dim.hdf5", "datasets")) as file:
        return [file.recording(demo) for demo in file.demos(None, 20)]


def stack_demos() -> list[dict[str, Any]]:
    """Episodes of one scene."""
    env, demos = make_env(env_args("Stack")), []
    for seed in range(3):
        env.reset(seed=seed)
        states, actions = [], np.zeros((30, *env.action_space.shape))
        for action in actions:
            states.append(env.get_state()["states"])
            env.step(action)
        model = env.get_state()["model"]
        demos.append({"model_file": model, "states": np.stack(states), "actions": actions})
    env.close()
    return demos


def trained_policy() -> RolloutPolicy:
    """Of Lift, as the demo's."""
    config = config_factory("bc", read_config_file(find_file("bc.json", "configs")))
    config.experiment.validate = False
    config.experiment.epoch_every_n_steps = Trainer.PROGRESS_EVERY
    config.train.num_epochs = TRAINING_STEPS // Trainer.PROGRESS_EVERY
    trainer = Trainer(config)
    for _ in tqdm(trainer(), desc="training", unit=" records", leave=False, disable=None):
        pass
    return RolloutPolicy(trainer.algo)


def untrained_policy(task: str) -> RolloutPolicy:
    env = make_env(env_args(task))
    shapes = {key: space.shape for key, space in env.observation_space.items()}
    config = config_factory("bc", read_config_file(find_file("bc.json", "configs")))
    return RolloutPolicy(algo_factory("bc", config, shapes, env.action_space.shape[0], "cpu"))


class Evaluation:
    """The same episodes again and again in one pool of workers."""

    def __init__(self, policy: RolloutPolicy, pool: EnvPool, episodes: int, horizon: int):
        self.policy, self.pool = policy, pool
        self.requests = [EpisodeRequest(TEST_SEEDS + i, horizon) for i in range(episodes)]
        list(evaluate(policy, pool, self.requests[: 3 * pool.num_workers]))

    def __call__(self) -> list[tuple[bool, float, int]]:
        results = list(evaluate(self.policy, self.pool, self.requests))
        crashed = [r for r in results if r.error]
        if crashed:
            raise SystemExit(f"seed {crashed[0].request.seed} crashed: {crashed[0].error}")
        results.sort(key=lambda r: r.request.seed or 0)
        return [(r.success, r.total_reward, r.length) for r in results]


def episodes(task: str, policy: RolloutPolicy, number: int, horizon: int, repeats: int) -> Any:
    with ExitStack() as stack:
        runs = {}
        for how in ("on", "off"):
            with switched(how):
                pool = stack.enter_context(EnvPool(env_args(task), num_workers=2))
            runs[how] = Evaluation(policy, pool, number, horizon)
        return compare(runs, repeats, warm_up=0)


def workers(policy: RolloutPolicy, repeats: int) -> list[str]:
    """50 episodes of Lift with two workers (``on``) and with one."""
    with ExitStack() as stack:
        runs = {}
        for how, number in (("on", 2), ("off", 1)):
            pool = stack.enter_context(EnvPool(env_args("Lift"), num_workers=number))
            runs[how] = Evaluation(policy, pool, 50, 400)
        return compare(runs, repeats, warm_up=0)


def on_ray(policy: RolloutPolicy, repeats: int) -> list[str]:
    """50 episodes of Lift in two actors (``on``) and in two processes."""
    with ExitStack() as stack:
        runs = {}
        for how, address in (("on", "local"), ("off", None)):
            make = stack.enter_context(pools(address))
            pool = stack.enter_context(make(env_args("Lift"), num_workers=2))
            runs[how] = Evaluation(policy, pool, 50, 400)
        return compare(runs, repeats, warm_up=1)


def policy_calls(repeats: int) -> Iterator[list[str]]:
    """Microseconds that a call for four environments takes more than its network."""
    for head in ("deterministic", "gaussian", "gmm"):
        config = config_factory("bc", read_config_file(find_file("bc.json", "configs")))
        if head != "deterministic":
            config.algo[head].enabled = True
        algo = Trainer(config).algo
        policy = RolloutPolicy(algo, EVALUATION_BATCH)
        shapes = {key: spec.shape for key, spec in algo.obs_spec.groups["obs"].items()}
        rng = np.random.default_rng(0)
        obs = {}
        for env in range(EVALUATION_BATCH):
            policy.start_episode(env, seed=env)
            obs[env] = {key: rng.normal(size=shape) for key, shape in shapes.items()}
        ready = {key: torch.randn(EVALUATION_BATCH, 1, *shape) for key, shape in shapes.items()}
        with torch.no_grad():
            contestants = {
                "network": timed(lambda algo=algo, ready=ready: algo.nets["policy"](ready)),
                "call": timed(lambda policy=policy, obs=obs: policy.act(obs)),
            }
            seconds = alternate(contestants, 100 * repeats)
        pairs = zip(seconds["call"], seconds["network"], strict=True)
        more = [1e6 * (call - network) for call, network in pairs]
        times = [f"{1e6 * median(seconds[name]):.0f}" for name in ("network", "call")]
        yield [head, *times, f"{median(more):.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = ("step", "reset", "playback", "episodes", "policy", "workers", "ray")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, metavar="PART")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each (default: 9)")
    args = parser.parse_args()
    print(f"{machine()}; {args.repeats} turns\n")
    # The first optimizer imports Triton, whose LLVM crashes if Mesa has loaded another to render.
    torch.optim.SGD([torch.zeros(1)])
    rows: list[list[str]] = []
    for task in TASKS if "step" in args.parts else ():
        rows.append([f"{STEPS} steps of {task}", *simulate(task, step, 3 * args.repeats)])
    for task in TASKS if "reset" in args.parts else ():
        rows.append([f"reset of {task}", *simulate(task, reset, 3 * args.repeats)])
    if "playback" in args.parts:
        recorded = {"Lift, another model each": lift_demos(), "Stack, one model": stack_demos()}
        for what, demos in recorded.items():
            task, work = what.partition(",")[0], playback(demos)
            rows.append([f"playback of {what}", *simulate(task, work, args.repeats)])
            if working_backend():
                times = simulate(task, work, args.repeats, **CAMERA)
                rows.append([f"the same with images of {what}", *times])
    if {"episodes", "workers", "ray"} & {*args.parts}:
        trained = trained_policy()
    if "episodes" in args.parts:
        times = episodes("Lift", trained, 50, 400, args.repeats)
        rows.append(["50 episodes of Lift, trained policy", *times])
        times = episodes("Stack", untrained_policy("Stack"), 20, 100, args.repeats)
        rows.append(["20 episodes of 100 steps of Stack, untrained policy", *times])
    print(markdown(["what", "off, ms", "on, ms", "on / off", "range"], rows))
    if "workers" in args.parts:
        times = workers(trained, args.repeats)
        header = ["50 episodes of Lift", "one worker, ms", "two, ms", "two / one", "range"]
        print(markdown(header, [["", *times]]))
    if "ray" in args.parts:
        times = on_ray(trained, args.repeats)
        header = ["50 episodes of Lift", "processes, ms", "Ray, ms", "Ray / processes", "range"]
        print(markdown(header, [["", *times]]))
    if "policy" in args.parts:
        torch.set_num_threads(1)
        calls = policy_calls(args.repeats)
        print(markdown(["policy", "network, us", "call, us", "more, us"], calls))


if __name__ == "__main__":
    main()
