"""A head and a node of a cluster in network namespaces of this machine, each with a Python
environment of its own."""

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="no Ray")

import test_ray

from offrl.tree import merge

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("ip") is None, reason="no network namespaces (root, ip)"
)

HEAD, NODE = "10.77.0.1", "10.77.0.2"
PATIENCE = 240  # seconds, on a machine that is busy
CONFIG = merge(
    test_ray.CONFIG,
    {
        "experiment": {"epoch_every_n_steps": 10_000},
        "train": {"num_steps": 200_000},
        "distributed": {"address": f"{HEAD}:6379"},
    },
)


class Machine:
    """A network namespace that commands run in."""

    def __init__(self, name):
        self.name = name
        self.environ = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}

    def run(self, *command, **options):
        command = ["ip", "netns", "exec", self.name, *map(str, command)]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE, **options
        )

    def processes(self):
        pids = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        return [int(pid) for pid in pids.stdout.split()]

    def kill(self):
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.2)


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=True)


@pytest.fixture
def machines():
    names = [f"offrl{os.getpid()}{side}" for side in "ab"]
    made = [Machine(name) for name in names]
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "ends0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "ends1",
            "netns",
            names[1],
        )
        for name, link, address in zip(names, ("ends0", "ends1"), (HEAD, NODE), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            for up in (link, "lo"):
                ip("-n", name, "link", "set", up, "up")
        yield made
    finally:
        for machine in made:
            machine.kill()
            ip("netns", "del", machine.name, check=False)


def environment(folder):
    """A Python environment of its own, which has all packages of this one."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin/python", packages


def start(machine, python, *words):
    script = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    done = machine.run(python, "-c", script, "start", "--num-cpus=1", *words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def cluster(machines, tmp_path):
    """The head and the packages of the other node, which is not started yet."""
    head, node = machines
    folder = Path("/tmp") / f"offrl-test-{os.getpid()}"  # short, as Ray puts sockets in it
    words = "--head", f"--node-ip-address={HEAD}", "--port=6379", "--include-dashboard=false"
    start(head, sys.executable, *words, f"--temp-dir={folder}")
    python, packages = environment(tmp_path / "environment")
    yield head, node, python, packages
    for machine in machines:
        machine.kill()
    shutil.rmtree(folder, ignore_errors=True)


def training(folder, *words):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    words = "--config", folder / "config.json", "--output", folder, "--name", "run", *words
    return sys.executable, "-m", "offrl", "train", *words


def train(head, folder):
    return head.run(*training(folder), cwd=folder)


def traffic(folder):
    """What was logged of each epoch so far."""
    runs = (folder / "run").glob("2*")
    records = [record for run in runs for record in test_ray.records_of(run)]
    return [record["logs"] for record in records if record["type"] == "collect"]


@pytest.mark.thorough
def test_explorers_act_on_both_nodes(cluster, tmp_path):
    head, node, python, _ = cluster
    start(node, python, f"--address={HEAD}:6379", f"--node-ip-address={NODE}")
    done = train(head, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = traffic(tmp_path)
    assert sum(logs["Trajectories"] for logs in collected) >= 40
    # The head has one CPU: there is a second explorer only if it acts on the other node.
    assert max(logs["Staleness_Max"] for logs in collected) >= 3


@pytest.mark.thorough
def test_a_node_with_another_package_is_refused(cluster, tmp_path):
    head, node, python, packages = cluster
    other = packages / "gymnasium-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnasium\nVersion: 0.0.1\n")
    start(node, python, f"--address={HEAD}:6379", f"--node-ip-address={NODE}")
    done = train(head, tmp_path)
    assert done.returncode not in (0, None)
    text = done.stdout + done.stderr
    assert "has gymnasium 0.0.1, and this program gymnasium" in text and "Traceback" not in text


@pytest.mark.thorough
def test_a_node_that_is_lost_is_done_without(cluster, tmp_path):
    head, node, python, _ = cluster
    start(node, python, f"--address={HEAD}:6379", f"--node-ip-address={NODE}")
    log = tmp_path / "log.txt"
    words = training(tmp_path, "--set", "train.num_steps=10000000")
    with open(log, "w") as output, test_ray.heeding():
        program = subprocess.Popen(
            ["ip", "netns", "exec", head.name, *map(str, words)],
            env=head.environ,
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )

    def both_act():
        return any(logs.get("Staleness_Max", 0) >= 3 for logs in traffic(tmp_path))

    try:
        test_ray.wait_for(both_act, tmp_path, "trajectories of both")
        node.kill()
        lost = "ended (killed or crashed, or the machine was lost)"
        test_ray.wait_for(lambda: lost in log.read_text(), tmp_path, lost)
        done = len(traffic(tmp_path))
        test_ray.wait_for(lambda: len(traffic(tmp_path)) >= done + 2, tmp_path, "more epochs")
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 130
    finally:
        program.kill()
        program.wait()
    assert "Traceback" not in log.read_text()
