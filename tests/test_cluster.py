"""Work on Ray: a real one of this machine, with actors of which some are really killed."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc
import h5py
import numpy as np
import pytest
import torch
from conftest import ROOT, SMALL, heeding, train_completely, write_demos
from toy_env import WalkHome, toy_args

from offrl import RolloutPolicy, cluster, config_factory
from offrl.__main__ import main
from offrl.acting import Policy
from offrl.checkpoint import read_checkpoint, write_checkpoint
from offrl.envs import make_env
from offrl.envs.workers import EnvPool, EpisodeRequest, RayPool
from offrl.evaluation.evaluate import evaluate
from offrl.training import Evaluator, Trainer, submit, train
from offrl.tree import merge

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray")

SWIMMER = {"env_name": "Swimmer-v5", "type": 2}
ENDS = [signal.SIGINT, signal.SIGKILL]  # after the latter Ray waits a minute


@pytest.fixture(scope="module")
def two_cpus():
    """A Ray of this machine."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    with cluster.connected("local", num_cpus=2):
        assert {number: signal.getsignal(number) for number in numbers} == before
        yield
    assert not ray.is_initialized()


def run(pool, seeds, policy=None, horizon=30, **options):
    requests = [EpisodeRequest(seed, horizon, **options) for seed in seeds]
    return sorted(pool.run(requests, policy or WalkHome()), key=lambda r: r.request.seed)


def numbers(results):
    return [(r.error, r.success, r.total_reward, r.length) for r in results]


# -- the connection -------------------------------------------------------------------------------


def closed_port():
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{end.getsockname()[1]}"


def test_an_address_that_does_not_answer_is_named(monkeypatch):
    address = closed_port()
    with pytest.raises(ConnectionError, match=f"{address} .*ray status"):
        cluster.connected(address).__enter__()
    monkeypatch.setenv("RAY_ADDRESS", address)  # of a cluster that is gone
    port = address.rpartition(":")[2]
    with pytest.raises(ConnectionError, match=f":{port} .*ray status"):
        cluster.connected("auto").__enter__()
    monkeypatch.setattr(cluster, "ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=rf"{address} \(.* Ray\)"):
            cluster.connected(address).__enter__()


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match=f"'{address}' .*local, auto .*HOST:PORT"):
        cluster.connected(address).__enter__()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'offrl\[distributed\]'"):
        cluster.connected("local").__enter__()


def test_another_ray_or_python_is_named():
    from ray._private.utils import check_version_info

    there = {"ray_version": "2.40.0", "python_version": "3.9.2"}
    with pytest.raises(RuntimeError) as refused:
        check_version_info(there, "node IP")
    said = str(cluster._in_words(refused.value, "head:6379"))
    versions = ("2.40.0", "3.9.2", ray.__version__, sys.version.split()[0])
    assert "Ray at head:6379" in said and all(version in said for version in versions)


MARK = "OFFRL_TEST_OF_ENDS"
PROGRAM = """
import time
from offrl import cluster
from offrl.envs.workers import EpisodeRequest, RayPool
from offrl.__main__ import _signals_interrupt
from toy_env import WalkHome, toy_args
with _signals_interrupt(), cluster.connected("local", num_cpus=1):
    with RayPool(toy_args(slow=0.1), 1) as pool:
        pool.check(WalkHome())
        print("runs", flush=True)
        list(pool.run([EpisodeRequest(0, 10**6, terminate_on_success=False)], WalkHome()))
"""


def marked(mark):
    """Processes whose environment says that they descend from a program."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_no_process_of_a_ray_of_ones_own_is_left(number, tmp_path):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environ = os.environ | {"PYTHONPATH": paths, MARK: str(tmp_path)}
    with heeding():
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert program.stdout.readline() == b"runs\n", program.stderr.read()
    assert len(marked(tmp_path)) > 3
    (folder,) = own_folders(program.pid)
    # A terminal sends it to all of a group.
    (os.killpg if number == signal.SIGINT else os.kill)(program.pid, number)
    _, said = program.communicate(timeout=120)
    assert program.returncode == -number, said
    end = time.monotonic() + 120
    while marked(tmp_path):
        assert time.monotonic() < end, [
            Path(f"/proc/{pid}/cmdline").read_text() for pid in marked(tmp_path)
        ]
        time.sleep(0.1)
    assert not folder.exists()


def own_folders(program):
    """Those in which the Rays of a program are."""
    found = (path.resolve() for path in Path("/tmp").glob("offrl-ray-*/*_*_*"))
    return {path.parent for path in found if path.name.endswith(f"_{program}")}


def listening():
    """The addresses of all sockets on which this program and what it started listen, in hex."""
    mark = f"{cluster.MARK}={ray._private.worker._global_node.get_temp_dir_path()}".encode()
    inodes = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is not ours
            if mark in environ.read_bytes() or environ.parent.name == str(os.getpid()):
                inodes |= {os.readlink(fd) for fd in environ.parent.glob("fd/*")}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                yield fields[1].rsplit(":", 1)[0]


def test_a_ray_of_ones_own_serves_this_machine_alone_and_asks_for_its_token(two_cpus):
    addresses = [*listening()]
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}  # the second as IPv6 has it
    assert len(addresses) > 5 and set(addresses) <= loopback
    gcs = ray.get_runtime_context().gcs_address
    theirs = [("authorization", f"Bearer {'0' * 64}")]
    with grpc.insecure_channel(gcs) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
        for metadata in ((), theirs):
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                ask(b"", timeout=10, metadata=metadata)
    assert "RAY_AUTH_TOKEN" not in os.environ and ray.nodes()  # which takes the right one


LEARNING = {
    "algo_name": "impala",
    "experiment": {"name": "x", "env": "CartPole-v1", "rollout": {"enabled": False}},
    "train": {"num_steps": 10**9, "cuda": False},
    "distributed": {"explorers": 1, "address": "local"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_training_whose_ray_is_lost_says_how_to_go_on(part, tmp_path):
    """Ray itself would end it after a minute, or at once, without a word."""
    (tmp_path / "config.json").write_text(json.dumps(LEARNING))
    command = [sys.executable, "-m", "offrl", "train", "--config", "config.json"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environ = os.environ | {"PYTHONPATH": paths}
    with heeding():
        program = subprocess.Popen(
            command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    end = time.monotonic() + 120
    while not [*tmp_path.glob("runs/x/*/last.pth")]:
        assert program.poll() is None and time.monotonic() < end, program.communicate()
        time.sleep(0.2)
    (folder,) = own_folders(program.pid)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    names = {Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in children}
    os.kill(names[part], signal.SIGKILL)
    _, said = program.communicate(timeout=30)
    (run,) = tmp_path.glob("runs/x/*")
    assert program.returncode in (1, -signal.SIGKILL, 128 + signal.SIGTERM)  # by what it was at
    assert f"train --resume {run}" in said.decode()
    assert not folder.exists()


@pytest.mark.parametrize("is_saved", [True, False])
def test_only_a_run_that_can_be_gone_on_with_is_named(small_config, monkeypatch, is_saved):
    said = []

    def tell(say="", **_):
        found = re.search(r"--resume (\S+)", say)
        said.append(found is not None and Path(found[1], "last.pth").exists() == is_saved)

    monkeypatch.setattr(cluster, "_tell_beside", tell)
    train(small_config({"experiment": {"save": {"enabled": is_saved}}}))
    assert said == [is_saved, False]


# -- episodes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Of the swimmer, untrained; it draws from a mixture."""
    shape = make_env(SWIMMER).observation_space["flat"].shape
    data = write_demos(tmp_path_factory.mktemp("data") / "demos.hdf5", obs={"flat": shape})
    overrides = {
        "train": {"data": str(data)},
        "algo": {"actor_layer_dims": [16, 16], "gmm": {"enabled": True, "low_noise_eval": False}},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    return RolloutPolicy(Trainer(config_factory("bc", merge(SMALL, overrides))).algo)


@pytest.mark.slow
def test_a_trained_policy_has_the_results_of_local_processes(two_cpus, policy):
    requests = [EpisodeRequest(seed, 40, record=True) for seed in range(6)]
    found = []
    for make in (EnvPool, RayPool):
        with make(SWIMMER, 2) as pool:
            before = torch.get_rng_state()
            results = evaluate(policy, pool, requests)
            found.append(sorted(results, key=lambda r: r.request.seed))
            assert torch.equal(before, torch.get_rng_state())
    assert numbers(found[0]) == numbers(found[1])
    for here, there in zip(*found, strict=True):
        assert here.error is None and here.trajectory.keys() == there.trajectory.keys()
        for key, values in here.trajectory.items():
            np.testing.assert_array_equal(values, there.trajectory[key])


@pytest.mark.slow
def test_actors_are_used_again_and_each_evaluation_has_its_policy(two_cpus):
    class Other(WalkHome):
        def act(self, *seen):
            return {env: -action for env, action in super().act(*seen).items()}

    with EnvPool(toy_args(), 2) as here, RayPool(toy_args(), 2) as there:
        there.check(WalkHome(), 2)
        actors = dict(there._workers)
        for policy in (WalkHome(), Other(), WalkHome()):
            options = {"policy": policy, "frame_every": 4, "terminate_on_success": False}
            ours, theirs = run(here, range(5), **options), run(there, range(5), **options)
            assert numbers(ours) == numbers(theirs)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one.frames, other.frames)
        assert there._workers == actors


@pytest.mark.thorough
def test_an_actor_keeps_the_memory_of_its_simulators(two_cpus):
    class Still(Policy):
        def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
            return {env: np.zeros(7) for env in obs_by_env}

    def page_faults(actor):
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with RayPool({"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}, 1) as pool:
        run(pool, range(10), Still(), horizon=1)  # until it has grown
        actor = pool._workers[0][0]
        before = ray.get(actor.__ray_call__.remote(page_faults))
        run(pool, range(10), Still(), horizon=1)
        assert ray.get(actor.__ray_call__.remote(page_faults)) - before < 10 * 5000


@pytest.mark.slow
def test_an_episode_of_a_killed_actor_is_run_again(two_cpus, tmp_path, caplog):
    with EnvPool(toy_args(), 2) as pool:
        undisturbed = run(pool, range(5))
    trouble = {"1": "raise", "3": "kill"}
    with RayPool(toy_args(trouble=trouble, scratch=str(tmp_path), says="it is cold"), 2) as pool:
        results = run(pool, range(5))
    assert (tmp_path / "1").exists() and (tmp_path / "3").exists()
    assert numbers(results) == numbers(undisturbed)
    said = [record.getMessage() for record in caplog.records]
    assert "it is cold" in said
    assert any("seed 3: worker ended (killed" in line and "attempt 2 of 3" in line for line in said)
    assert any("seed 1: FloatingPointError: physics exploded" in line for line in said)


@pytest.mark.thorough
def test_an_actor_that_hangs_is_lost_and_its_episode_counted_apart(two_cpus):
    with RayPool(toy_args(trouble={"1": "hang"}), 2, timeout=2) as pool:
        results = run(pool, range(3))
    assert [r.error is None for r in results] == [True, False, True]
    assert results[1].error == "worker ended (killed, out of memory or silent for 2 s)"


@pytest.mark.slow
def test_what_cannot_work_is_said_as_by_processes(two_cpus):
    class Lost(WalkHome):
        def act(self, *seen):
            raise ValueError("the map is gone")

    class Locked(WalkHome):
        def __init__(self):
            self.lock = threading.Lock()

    with RayPool(toy_args(), 1) as pool:
        with pytest.raises(RuntimeError, match="the map is gone"):
            pool.check(Lost())
        with pytest.raises(ValueError, match="Ray.*lock"):
            pool.check(Locked())
        assert run(pool, [0])[0].error is None
    with RayPool(toy_args(broken=True), 1) as pool:
        with pytest.raises(ValueError, match="'toy_env:Toy-v0': .*RuntimeError"):
            pool.check(WalkHome())


@pytest.mark.slow
def test_a_worker_of_other_versions_is_refused(two_cpus, monkeypatch):
    ours = cluster.versions()
    with RayPool(toy_args(), 1) as pool:
        for package, version in (("mujoco", "2.0"), ("offrl", "0.1.0 (another)")):
            monkeypatch.setattr(cluster, "versions", lambda p=package, v=version: ours | {p: v})
            with pytest.raises(ValueError, match=f"{package} .*{package} {re.escape(version)}"):
                pool.check(WalkHome())
        told = cluster.Report("box", {k: v for k, v in ours.items() if k != "gymnasium"})
        with pytest.raises(ValueError, match="box .*gymnasium"):
            cluster.check_versions(told, ours)


@pytest.mark.slow
def test_without_free_cpus_it_says_so(two_cpus, monkeypatch, caplog):
    with RayPool(toy_args(), 1) as first:
        first.check(WalkHome())
        with RayPool(toy_args(), 2) as pool:
            pool.check(WalkHome())
            monkeypatch.setattr("offrl.envs.workers.actors.START_S", 2.0)
            assert all(result.error is None for result in run(pool, range(3)))
            assert pool.num_workers == 1
            assert "workers reduced to 1: the cluster has no more free CPUs" in caplog.text
            with RayPool(toy_args(), 1) as third:
                with pytest.raises(ValueError, match="2 s.*ray status"):
                    third.check(WalkHome())


# -- trainings and commands -----------------------------------------------------------------------


@pytest.fixture
def toy_config(small_config, demos):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 4, "horizon": 12, "rate": 2, "num_workers": 1}
    experiment = {"rollout": rollout, "render_video": False}
    return lambda overrides: small_config(merge({"experiment": experiment}, overrides))


@pytest.mark.slow
def test_an_evaluation_while_training_is_that_of_processes(two_cpus, toy_config):
    on_ray = {
        "experiment": {"rollout": {"backend": "ray"}},
        "distributed": {"address": "local"},
    }
    found = []
    for overrides in ({}, on_ray):
        records = train_completely(Trainer(toy_config(overrides)))
        kinds = ("episode", "rollout")
        found.append([(r["type"], r["logs"]) for r in records if r["type"] in kinds])
    assert len(found[0]) == 10 and found[0] == found[1]
    del on_ray["distributed"]
    with pytest.raises(ValueError, match="rollout.backend: ray.*distributed.address"):
        Evaluator(Trainer(toy_config(on_ray)))


@pytest.mark.slow
def test_an_evaluation_leaves_cpus_to_the_explorers(two_cpus, tmp_path):
    def config(explorers):
        said = {
            "experiment": {
                "env": "CartPole-v1",
                "rollout": {"backend": "ray", "n": 4, "horizon": 20, "num_workers": 2},
                "render_video": False,
            },
            "train": {"num_steps": 400, "output_dir": str(tmp_path), "cuda": False},
            "distributed": {"explorers": explorers, "address": "local"},
        }
        return config_factory("impala", said)

    result = train(config(1))
    assert not result.problems and result.test is not None
    with pytest.raises(ValueError, match="distributed.explorers: 2"):
        train(config(2))


@pytest.mark.thorough
def test_submitted_trainings_have_the_results_of_local_ones(two_cpus, toy_config, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    configs = [toy_config({"train": {"seed": seed}}) for seed in (1, 2)]
    missing = toy_config({"train": {"data": "nowhere.hdf5"}})
    with pytest.raises(ValueError, match="num_threads: 99"):
        submit(configs, "local", num_threads=99)
    *results, refused = submit([*configs, missing], "local")
    assert isinstance(refused, FileNotFoundError) and "nowhere.hdf5: no such file" in str(refused)
    for config, result in zip(configs, results, strict=True):
        here = train(config)
        assert result.run.path != here.run.path and result.test == here.test is not None
        ours, theirs = (read_checkpoint(r.run.last_checkpoint) for r in (here, result))
        assert ours["model"].keys() == theirs["model"].keys()
        for name, weights in ours["model"]["nets"].items():
            assert torch.equal(weights, theirs["model"]["nets"][name]), name


@pytest.mark.thorough
def test_the_command_rollout_runs_there(two_cpus, toy_config, tmp_path):
    trainer = Trainer(toy_config({}))
    checkpoint = tmp_path / "model.pth"
    write_checkpoint(checkpoint, trainer.state() | {"env_metadata": toy_args()})
    figures = []
    for name, where in (("here", []), ("there", ["--address", "local"])):
        path = tmp_path / f"{name}.json"
        arguments = ["rollout", "--checkpoint", str(checkpoint), "--n", "4", "--json", str(path)]
        assert main([*arguments, *where]) == 0
        figures.append(path.read_text())
    assert figures[0] == figures[1]


@pytest.mark.thorough
def test_collected_demonstrations_are_those_of_local_processes(two_cpus, tmp_path):
    files = [tmp_path / "here.hdf5", tmp_path / "there.hdf5"]
    for file, where in zip(files, ([], ["--address", "local"]), strict=True):
        arguments = ["collect", "--env", "Lift", "--n", "3", "--noise", "0.1", *where]
        assert main([*arguments, "--output", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
