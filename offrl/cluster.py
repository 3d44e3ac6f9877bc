"""The connection to Ray, for work on several machines, and the requirements for its workers.

Ray's ``wait`` and ``get`` make a plain ``KeyboardInterrupt`` of any signal; to know which one came,
wait for ``ref.future()`` instead.
"""

import hashlib
import json
import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from offrl import __version__
from offrl.lazy import needed
from offrl.processes import FOR_THE_PARENT, ONE_THREAD, Alarm, changed_environ

# The environment of an own Ray, whose workers have the program's priority (niceness).
START = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
MARK = "OFFRL_OWN_RAY"
# For actors that simulate. MuJoCo compiles each model in new threads. Beside Ray's many threads
# glibc has a heap for each of them, and returns freed memory to the system.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
ANSWER_S = 30.0  # seconds for an address to answer
BESIDE: list[subprocess.Popen[bytes]] = []  # runs ``beside_ray.py`` while this program is on Ray
# Packages on which the bits of results depend.
PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "robosuite", "metaworld", "ale-py")


def import_ray() -> Any:
    """Import the package. ``ImportError`` says how to install it."""
    return needed("ray", "distributed", "Ray is needed to work on several machines")


@contextmanager
def connected(address: str, num_cpus: int | None = None) -> Iterator[None]:
    """Connect this program to Ray for the block. An existing connection is used and kept.

    Raises ``ValueError`` if the address is malformed, and ``ConnectionError`` if it does not answer
    within 30 s, or runs another Ray or Python.

    address: ``local`` starts a private Ray on this machine, which ends with the block or the
        program; ``auto`` is the one that runs on this machine; ``HOST:PORT`` is the head of a
        cluster of which this machine is a node.
    num_cpus: the number of one-CPU workers of a private Ray; ``None``: one per core.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    with ExitStack() as at_the_end:
        environ: dict[str, str] = {}
        if address == "local":
            # Not Ray's usual one, by which ``auto`` would find it; short, as sockets are in it.
            folder = tempfile.mkdtemp(prefix="offrl-ray-", dir="/tmp")
            at_the_end.enter_context(_with_cleanup_process(folder))
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            environ = {**START, **token, MARK: folder}
            at_the_end.callback(_read_tokens_anew)
            # It listens on 127.0.0.1 alone, as on systems where Ray makes no clusters.
            ray_constants: Any = import_module("ray._private.ray_constants")
            before = ray_constants.ENABLE_RAY_CLUSTER
            at_the_end.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", before)
            ray_constants.ENABLE_RAY_CLUSTER = False
            cpus = num_cpus or len(os.sched_getaffinity(0))
            settings: dict[str, Any] = {"address": "local", "num_cpus": cpus, "_temp_dir": folder}
            settings["include_dashboard"] = False
        else:
            settings = {"address": _answering_address(address)}
            at_the_end.enter_context(_with_cleanup_process())
        at_the_end.callback(ray.shutdown)
        with _own_signals(), changed_environ(environ):
            _read_tokens_anew()
            try:
                ray.init(**settings, log_to_driver=False, logging_level="ERROR")
            except Exception as error:
                raise _in_words(error, address) from None
        _tell_beside(watched=_addresses(), say="give the same command again")
        at_the_end.callback(_tell_beside, watched={}, say="")
        yield


def num_cpus() -> int:
    """Count how many CPUs the connected Ray has."""
    return max(1, int(import_ray().cluster_resources().get("CPU", 1)))


def _answering_address(address: str) -> str:
    """Return ``HOST:PORT`` of a Ray that answers; Ray itself would go on trying for minutes."""
    import grpc

    if address == "auto":
        from ray._private.services import canonicalize_bootstrap_address_or_die

        try:
            address = canonicalize_bootstrap_address_or_die("auto")
        except ConnectionError:
            raise ConnectionError(
                "the address auto: no Ray runs on this machine; start one (ray start --head) or "
                "join a cluster's (ray start --address=HOST:PORT), or give local"
            ) from None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{address!r} is no address of a Ray: give local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(ANSWER_S)
    except (OSError, OverflowError, grpc.FutureTimeoutError) as error:
        why = getattr(error, "strerror", None) or str(error) or "what is there is no Ray"
        raise ConnectionError(
            f"no Ray answers at {address} ({why}); see whether the cluster runs (ray status), and "
            "give the address that ray start --head said"
        ) from None
    return address


@contextmanager
def _with_cleanup_process(folder: str | None = None) -> Iterator[None]:
    """Run ``beside_ray.py`` beside the program for the block. At the end of the block or of the
    program it removes the folder, and all processes that have its name in their environment."""
    script = Path(__file__).with_name("beside_ray.py")
    cleans = [] if folder is None else [folder, f"{MARK}={folder}"]
    command = [sys.executable, "-I", "-S", str(script), *cleans]
    # In a session of its own it is out of reach of a terminal's Ctrl-C.
    beside = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    BESIDE.append(beside)
    try:
        yield
    finally:
        BESIDE.remove(beside)
        beside.communicate()


def _addresses() -> dict[str, tuple[str, int]]:
    """Return the addresses of the Ray processes that the program needs. If one is lost, the program
    is stopped as by a scheduler, so that it saves its state; Ray would kill it."""
    ray = import_ray()
    here = ray.get_runtime_context()
    node = next(x for x in ray.nodes() if x["NodeID"] == here.get_node_id())
    host, _, port = here.gcs_address.rpartition(":")
    raylet = node["NodeManagerAddress"], node["NodeManagerPort"]
    return {"raylet": raylet, "GCS": (host, int(port))}


@contextmanager
def saying_how_to_resume(words: str) -> Iterator[None]:
    """Let the ``words`` say how to go on if Ray ends the program in here."""
    _tell_beside(say=words)
    try:
        yield
    finally:
        _tell_beside(say="")


def _tell_beside(**known: Any) -> None:
    for beside in BESIDE:
        assert beside.stdin is not None
        with suppress(BrokenPipeError):
            beside.stdin.write(json.dumps(known).encode() + b"\n")
            beside.stdin.flush()


def _read_tokens_anew() -> None:
    """Let Ray read the authentication token from the environment anew."""
    raylet: Any = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore signal handlers that Ray replaces at its start. Processes that it starts do not end
    by signals that a terminal or a scheduler sends to all processes."""
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces it
    # Ray ends its processes by SIGTERM.
    others = {*FOR_THE_PARENT} - {signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, others)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_words(error: Exception, address: str) -> Exception:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if address == "local":
        return ConnectionError(f"no Ray could be started on this machine: {reason}")
    return ConnectionError(
        f"Ray at {address} took no connection ({reason}); use the Ray and the Python that it has, "
        "and set the RAY_AUTH_MODE that it was started with, on this machine as a node of the "
        "cluster (ray start --address=HOST:PORT)"
    )


def options(environ: Mapping[str, str] | None = None, num_cpus: float = 1) -> dict[str, Any]:
    """Make the ``options`` of an actor or a task that computes as this program does: one thread,
    its modules (also those of the user's own, at the same path) and its switches.

    environ: more environment variables of its process.
    """
    own = [sys.prefix, sys.base_prefix, sys.exec_prefix]  # folders that each machine has for itself
    paths = [os.path.abspath(path) for path in sys.path]
    paths = [path for path in paths if not any(Path(path).is_relative_to(one) for one in own)]
    kinds = ("OFFRL_", "GOMP_")
    switches = {name: value for name, value in os.environ.items() if name.startswith(kinds)}
    variables = {"PYTHONPATH": os.pathsep.join(paths), **ONE_THREAD, **switches, **(environ or {})}
    return {"num_cpus": num_cpus, "runtime_env": {"env_vars": variables}}


def start_actor(kind: type, *arguments: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Start an actor, a ``RayActor`` that simulates, and return Ray's handle of it."""
    made = import_ray().remote(kind).options(**options({**ONE_HEAP, **(environ or {})}))
    return made.remote(*arguments)


def put(value: Any) -> Any:
    """Put a value into the object store. Returns a reference; ``OSError`` if there is no room."""
    ray = import_ray()
    try:
        return ray.put(value)
    except (ray.exceptions.OutOfDiskError, ray.exceptions.ObjectStoreFullError) as error:
        raise OSError(reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    """Return one sentence on why a worker failed, as Ray's own text is a page; for an exception
    that was raised in it, the message."""
    exceptions, error = import_ray().exceptions, getattr(error, "cause", None) or error
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError):
        node, used = re.search(r"IP: ([^,)]+)", text), re.search(r"was (.+?) \(", text)
        where = f" {node[1]}" if node else ""
        said = f" ({used[1]})" if used else ""
        return f"Ray ended it, as the node{where} ran out of memory{said}; start fewer there"
    if isinstance(error, (exceptions.OutOfDiskError, exceptions.ObjectStoreFullError)):
        return (
            "a node has no room left: Ray's memory for objects and the disk behind it are full; "
            "free some there (df, ray memory)"
        )
    if isinstance(error, exceptions.RayActorError):
        node = re.search(r"^\s*ip: (\S+)", text, re.MULTILINE)
        where = f" on the node {node[1]}" if node else ""
        return f"its process{where} ended (killed or crashed, or the machine was lost)"
    return text


class Report(NamedTuple):
    """The report of a worker on itself."""

    node: str  # the name of its machine
    versions: dict[str, str]  # by package


def report() -> Report:
    """Return the report of this process."""
    return Report(platform.node(), versions())


class RayActor:
    """The base of offrl's actors: one ends itself if it hangs, and gives a ``report`` first.

    timeout: seconds without a call of ``alarm.put_off``, in a ``with`` block of the alarm.
    """

    def __init__(self, timeout: float):
        self.alarm = Alarm(timeout)

    def report(self) -> Report:
        return report()


def check_versions(told: Report, needed: Mapping[str, str] | None = None) -> None:
    """Raise ``ValueError`` for a worker whose packages differ from the program's, which has the
    ``versions()`` ``needed``; ``None``: this process is the program."""
    for package, ours in (needed or versions()).items():
        theirs = told.versions.get(package)
        if theirs != ours:
            has = f"{package} {theirs}" if theirs else f"no {package}"
            raise ValueError(
                f"the node {told.node} has {has}, and this program {package} {ours}: install the "
                "same on all machines, as results would differ"
            )


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    folder, digest = Path(__file__).parent, hashlib.sha256()  # two clones may have one version
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    own = f"{__version__} ({digest.hexdigest()[:8]})"
    found = {"Python": "{}.{}".format(*sys.version_info), "offrl": own}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
