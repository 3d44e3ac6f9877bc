"""Python programs that need no start: ``Popen`` and ``run`` as in ``subprocess``, but forked from a
warm process, which has imported PyTorch and offrl already.

A program is a child of the test as any other: it has an exit status, a process group and signals of
its own, and the environment, the folder and the streams that it is given. What is read while a
process starts is the warm one's: the seed of hashes, the number of threads, ``/proc/PID/environ``
and ``cmdline``. Tests of these and of the start, or that have signals ignored, use ``subprocess``.
"""

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import multiprocessing.process
import os
import pickle
import pkgutil
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # of Linux' <sys/prctl.h>
LARGEST = 2**20  # bytes of a request
READ_AT_START = re.compile(
    "PYTHON(?!PATH$)|OMP_|KMP_|MKL_|OPENBLAS_|MALLOC_|HDF5_|TORCH_|MPL|LD_|LC_|LANG"
)
lock = threading.Lock()


class Popen(subprocess.Popen):
    """``[sys.executable, "-m", MODULE | "-c", CODE | SCRIPT, *ARGUMENTS]``, or the path of a Python
    script that can be executed."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
        creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
        restore_signals, gid, gids, uid, umask, start_new_session, *process_group,
    ):  # fmt: skip
        words = [os.fspath(word) for word in args]
        words = words[1:] if words[0] == sys.executable else words
        others = (executable, preexec_fn, shell, gid, gids, uid, umask >= 0, process_group > (-1,))
        if any(others) or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
            raise ValueError("this is not known of a forked program: use subprocess")
        for name in filter(READ_AT_START.match, env or ()):
            if env[name] != os.environ.get(name):
                raise ValueError(f"{name} was read when the warm process began: use subprocess")
        request = {
            "words": words,
            "cwd": os.path.abspath(cwd or ""),
            "env": dict(os.environ if env is None else env),
            "starts_session": start_new_session,
            "fds": (0, 1, 2, *pass_fds),
        }
        given = enumerate((p2cread, c2pwrite, errwrite))
        streams = [fd if fd >= 0 else own for own, fd in given]
        prctl = ctypes.CDLL(None).prctl
        with lock:
            warm = _warm()
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # a parent of those whose own parent ends
            try:
                socket.send_fds(warm, [pickle.dumps(request)], [*streams, *pass_fds])
                self.pid, error = pickle.loads(warm.recv(LARGEST))
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
        if error:
            os.waitpid(self.pid, 0)
            raise error
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


# Python's own function, with this ``Popen``.
run = types.FunctionType(subprocess.run.__code__, {**vars(subprocess), "Popen": Popen})
run.__kwdefaults__ = subprocess.run.__kwdefaults__
if sys.platform != "linux":  # where nobody adopts
    Popen, run = subprocess.Popen, subprocess.run


@functools.cache
def _warm():
    """The socket to the warm process, which ends with its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    high = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 900)  # no number that a program is given
    paths = os.environ.get("PYTHONPATH", "")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Forks of a process with threads would lack them.
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(high), paths],
        env=environ,
        cwd=Path(__file__).parent,  # not in a test's
        pass_fds=[high],
    )
    theirs.close()
    os.close(high)
    atexit.register(process.wait)
    atexit.register(ours.shutdown, socket.SHUT_RDWR)  # first; others may have been forked with it
    return ours


# -- the warm process -----------------------------------------------------------------------------


def _serve(control, path):
    """Fork a program for each request; returns in the fork, with its words."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, LARGEST, 100)
        if not message:
            os._exit(0)
        if between := os.fork():
            os.waitpid(between, 0)  # and the child's parent is the test
            for fd in fds:
                os.close(fd)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(0.0002)
        request = pickle.loads(message)
        try:
            _become(request, fds, path)
        except Exception as error:
            control.send(pickle.dumps((os.getpid(), error)))
            os._exit(1)
        control.send(pickle.dumps((os.getpid(), None)))
        control.close()
        return request["words"]


def _become(request, fds, path):
    """Be as a process that has just begun."""
    env = request["env"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["starts_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    multiprocessing.process.ORIGINAL_DIR = request["cwd"]
    os.environ.clear()
    os.environ.update(env)
    paths = map(os.path.abspath, filter(None, env.get("PYTHONPATH", "").split(":")))
    sys.path[:] = dict.fromkeys([*paths, *path])
    sys.path_importer_cache.clear()
    beyond = 100 + max(request["fds"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, beyond) for fd in fds]
    for fd in fds:
        os.close(fd)
    for number, fd in zip(request["fds"], high, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        own = getattr(sys, name)
        unbuffered = own.write_through
        kind, size = ("wb", 0 if unbuffered else -1) if number else ("rb", -1)
        buffer = open(number, kind, size, closefd=False)
        getattr(buffer, "raw", buffer).name = own.name
        in_lines = not unbuffered and (number == 2 or buffer.isatty())
        stream = io.TextIOWrapper(buffer, own.encoding, own.errors, "\n", in_lines, unbuffered)
        stream.mode = own.mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    # What C and C++ libraries do at exit() costs another 0.1 s: only what they print is put out.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)

    import numpy
    import torch

    numpy.random.seed()  # or it would be the same in all forks; Python's own takes care of itself
    torch.default_generator.seed()


def _run(words):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.orig_argv[:] = [sys.executable, *words]
    kind, *sys.argv[:] = words
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        return runpy._run_module_as_main(words[1])
    if kind == "-c":
        sys.argv[0], code = "-c", compile(words[1], "<string>", "exec")
        sys.path.insert(0, "")
    else:
        sys.argv.insert(0, kind)
        main.__file__ = os.path.abspath(kind)
        code = compile(Path(kind).read_bytes(), main.__file__, "exec")
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
    exec(code, main.__dict__)


def _say(kind, error, trace, excepthook=sys.excepthook):
    """What nobody caught, without the frames of this file."""
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    excepthook(kind, error.with_traceback(trace), trace)


def _keep_modules():
    """Python, on its way out, would free all of PyTorch, page by page: 0.1 s."""
    for name in modules.keys() - {"sys", "builtins", "__main__"}:
        sys.modules.pop(name, None)


def _import_what_programs_do():
    import offrl.tools

    for command in pkgutil.iter_modules(offrl.tools.__path__):
        importlib.import_module(f"offrl.tools.{command.name}")
    for name in ("offrl.algos.bc", "offrl.checkpoint", "offrl.training.launch"):
        importlib.import_module(name)
    for name in ("torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        with suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    socket_to_tests = socket.socket(fileno=int(sys.argv[1]))
    of_python = sys.path[1:]
    sys.path[:0] = filter(None, sys.argv[2].split(":"))
    atexit.register(_keep_modules)  # before others, to be called after them
    _import_what_programs_do()
    modules = dict(sys.modules)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))  # for ever
    for finalizer in weakref.finalize._registry:  # of modules
        finalizer.atexit = False
    # One that a terminal sends to all is the tests' to heed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for heeded in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(heeded, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    sys.excepthook = _say
    _run(_serve(socket_to_tests, of_python))
