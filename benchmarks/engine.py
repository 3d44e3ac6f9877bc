"""Steps by each engine (``train.engine``) that runs here, beside a bare loop.

    OMP_NUM_THREADS=1 python benchmarks/engine.py [--only mlp td3_bc] [--repeats 7] [--seconds 1]

On a CPU these are ``eager`` and ``compile``; on a GPU ``graph``, too, and the bare loop is also
captured by hand, two steps as one graph. All take turns in one run. A figure is the median over the
turns, with the smallest and the largest; a ratio is that of times within a turn, by the clock and,
on a CPU, by the processors, which says more where others use the machine as well. The seconds are
those of the first steps, in which a step is compiled, with no code from an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import chunks
import throughput
import torch
from bare_rl import Step, Transitions, sac
from measure import alternate, machine, markdown, ratios, spread
from torch import nn

from offrl import algo_factory, config_factory
from offrl.algos.shared.engine import Engine
from offrl.training import Trainer

Take = Callable[[], object]  # a step
WORK = ["mlp", "iql", "td3_bc", "cql", "edac", "small_unet", "transformer", "act", "sac", "td3"]
WORK += ["rnn_gmm", "transformer_gmm"]
UPDATES = ("sac", "td3")  # of HalfCheetah, which has these sizes
OBS_DIM, AC_DIM, BATCH = 17, 6, 256
FIRST = 6  # steps in which all ways that steps go are captured


def make_trainer(work: str, engine: str, folder: str) -> Trainer:
    if work in chunks.POLICIES:
        return chunks.make_trainer(chunks.POLICIES[work], 1, engine)
    policy = throughput.POLICIES[work]
    data = "datasets/lift/low_dim.hdf5" if policy.bare else throughput.with_next_obs(folder)
    config = throughput.make_config(1, policy, data)
    config.train.engine = engine
    return Trainer(config)


def offrl_step(trainer: Trainer) -> Take:
    """From a batch to updated weights."""
    trainer.algo.set_train()
    batches = iter(trainer.loader)
    return lambda: trainer.engine.step(next(batches), epoch=1)


def bare_step(trainer: Trainer, work: str) -> Take:
    if work in chunks.POLICIES:
        return chunks.bare_step(trainer, chunks.POLICIES[work].loss)
    policy = throughput.POLICIES[work]
    if policy.bare is None:
        return throughput.bare_rl_step(trainer)
    return throughput.bare_step(trainer, policy, nn.Linear)


def update_step(name: str, engine: str, device: torch.device) -> Take:
    """An update of online RL from a batch that is there."""
    nets = {"layer_dims": [256, 256]}
    overrides = {
        "algo": {"actor": nets, "critic": nets},
        "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
        "train": {"engine": engine},
    }
    config = config_factory(name, overrides)
    algo = algo_factory(name, config, {"state": (OBS_DIM,)}, AC_DIM, device)
    algo.set_train()
    b = transitions(device)
    states = ({"state": x[:, None]} for x in (b.obs, b.next_obs))
    columns = {"rewards": b.rewards[:, None], "dones": b.dones[:, None]}
    data = {"actions": b.actions[:, None], **columns}
    raw = dict(zip(("obs", "next_obs"), states, strict=True)) | data
    ready = algo.process_batch_for_training(raw)
    made = Engine(algo)
    return lambda: made.step(ready, epoch=1, is_raw=False)


def transitions(device: torch.device) -> Transitions:
    draw = partial(torch.randn, device=device)
    obs, next_obs = draw(BATCH, OBS_DIM), draw(BATCH, OBS_DIM)
    actions = draw(BATCH, AC_DIM).tanh()
    return Transitions(obs, actions, draw(BATCH), torch.zeros_like(obs[:, 0]), next_obs, actions)


def bare_sac(device: torch.device) -> Take:
    with device:
        step: Step = sac(OBS_DIM, AC_DIM, num_critics=2)
    return partial(step, transitions(device))


def captured(step: Take) -> Take:
    """Two steps as one CUDA graph, which each second call starts."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(6):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
        step()
    num = 0

    def half() -> None:
        nonlocal num
        num += 1
        if num % 2:
            graph.replay()

    return half


def contestants(work: str, folder: str) -> dict[str, Take]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    engines = ["eager", *["graph"] * torch.cuda.is_available(), "compile"]
    if work in UPDATES:
        steps = {name: update_step(work, name, device) for name in engines}
        bare = bare_sac(device) if work == "sac" else None
    else:
        trainers = {name: make_trainer(work, name, folder) for name in engines}
        steps = {name: offrl_step(trainer) for name, trainer in trainers.items()}
        bare = bare_step(trainers["eager"], work)
    if bare is not None:
        steps["bare loop"] = bare
        if device.type == "cuda":
            try:
                steps["bare loop, captured"] = captured(bare)
            except RuntimeError as error:
                print(f"{work}: the bare loop is not captured: {error}", file=sys.stderr)
    return steps


def seconds(step: Take, num: int) -> tuple[float, float]:
    """The seconds of so many steps, by the clock and by the processors."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(num):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def kernels(step: Take) -> str:
    """Those that a GPU runs in a step."""
    if not torch.cuda.is_available():
        return "-"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        seconds(step, 10)
    events = [x for x in profile.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    return f"{len(events) / 10:.0f}"


def measured(work: str, folder: str, repeats: int, length: float) -> dict[str, Any]:
    """The milliseconds of a step, by the clock and the processors, and the first seconds."""
    steps = contestants(work, folder)
    begun = {name: seconds(step, FIRST)[0] for name, step in steps.items()}
    num = max(2, 2 * round(length / 2 / (seconds(steps["eager"], 4)[0] / 4)))
    turns = {name: partial(seconds, step, num) for name, step in steps.items()}
    times: dict[str, Any] = alternate(turns, repeats)
    return {
        name: {
            "wall": [1000 * wall / num for wall, _ in own],
            "cpu": [1000 * cpu / num for _, cpu in own],
            "first": begun[name],
            "kernels": kernels(steps[name]),
        }
        for name, own in times.items()
    }


def rows(work: str, results: dict[str, Any]) -> list[list[str]]:
    eager, bare = results["eager"], results.get("bare loop")
    return [
        [
            work,
            name,
            spread(own["wall"]),
            spread(ratios(own["wall"], eager["wall"])),
            spread(ratios(own["cpu"], eager["cpu"])),
            spread(ratios(own["wall"], bare["wall"])) if bare else "-",
            f"{own['first']:.0f}",
            own["kernels"],
        ]
        for name, own in results.items()
    ]


HEADER = ["work", "engine", "ms", "time / eager", "processors' time / eager", "time / bare loop"]
HEADER += ["first steps, s", "kernels"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=WORK, default=WORK, help="what to measure")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn, about")
    parser.add_argument("--json", type=Path, help="also write every measured number there")
    args = parser.parse_args()
    results, lines = {}, []
    for work in args.only:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            results[work] = measured(work, folder, args.repeats, args.seconds)
        lines += rows(work, results[work])
    print(f"{machine()}; {args.repeats} turns\n\n{markdown(HEADER, lines)}")
    if args.json:
        content = {"machine": machine(), "results": results}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
