"""Every benchmark runs, in little; what it says of speed then means nothing."""

import os
import pkgutil
import shutil
import sys

import programs
import pytest
from conftest import ROOT

FOLDER = ROOT / "benchmarks"
POLICIES = ["mlp", "gmm", "vae", "rnn_gmm", "transformer_gmm", "iql", "awac", "td3_bc", "rebrac"]
POLICIES += ["cql", "bcq", "sac_n", "edac"]
SMALLEST = [
    "accumulate --repeats 1",
    "chunks --only flow small_unet act vq_bet --repeats 1 --steps 1",
    "convert --demos 15 --repeats 1",
    "demonstrators --n 2 --only Lift",
    "critics --repeats 1",
    "data_tools --gigabytes 0.01 --demos 2 --repeats 1",
    "distributed --repeats 1 --seconds 0.5",
    "engine --only mlp sac --repeats 1 --seconds 0.01",
    "edit --demos 2 --steps 50 --repeats 1",
    "evaluation --parts reset policy --repeats 1",
    "hierarchy --repeats 1",
    "data_scale --quick",
    "images --demos 4 --steps 12 --repeats 1 --updates 1 --batches 2",
    "kernels ensemble adam norm memory --turns 2 --seconds 0.01",
    "online --repeats 1 --seconds 0.01",
    "scaling --quick",
    "startup --repeats 1",
    "study --repeats 1 --steps 20 --cells 2 --episodes 2 --runs 4",
    *(f"throughput --policy {policy} --repeats 1 --steps 1" for policy in POLICIES),
    "view --repeats 1 --rendered 1 --episodes 300",
]
# They need robomimic, LeRobot or hours; what all others share has no contest of its own.
OTHERS = {
    "finetune",
    "lerobot_loader",
    "parity",
    "record",
    "results",
    "online_configs",
    "online_results",
    "measure",
    "peers",
    "online_peers",
}
OTHERS |= {"online_configs", "online_results", "bare", "bare_online", "bare_parts", "bare_rl"}
OTHERS |= {"bare_impala", "image_windows"}
NEEDED = {"view": "chromium", "data_tools": "taskset"}


def test_every_script_is_tried_or_known():
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts == {command.split()[0] for command in SMALLEST} | OTHERS


def test_every_policy_of_the_trainings_is_tried(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import throughput

    assert set(throughput.POLICIES) == set(POLICIES)


def test_what_a_kernel_replaces_is_there(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from kernels import KERNELS

    for kernel in KERNELS.values():
        for name in [*kernel.plain, *kernel.ours]:
            pkgutil.resolve_name(name)


@pytest.mark.thorough
@pytest.mark.parametrize("command", SMALLEST)
def test_a_benchmark_runs(command):
    script, *options = command.split()
    program = NEEDED.get(script)
    if program and not shutil.which(program):
        pytest.skip(f"no {program} on the PATH")
    done = programs.run(
        [sys.executable, str(FOLDER / f"{script}.py"), *options],
        cwd=ROOT,
        # Peers that are not there stay away.
        env=os.environ | {"PIP_NO_INDEX": "1", "GIT_ALLOW_PROTOCOL": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " torch threads, " in done.stdout  # the machine
