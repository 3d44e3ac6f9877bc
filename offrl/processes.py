"""Signals to processes, processes that work for another one, and errors that come from them."""

import atexit
import ctypes
import faulthandler
import os
import pickle
import signal
import socket
import sys
import sysconfig
import threading
import time
import traceback
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from operator import length_hint
from typing import IO, Any, TypeVar

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Terminals and schedulers send these to every process; the parent decides what to do.
FOR_THE_PARENT = (*STOPS, signal.SIGUSR1)
# The environment of processes that compute side by side.
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
END_S = 10.0  # seconds for a process to end; it may be stuck in the system
LAST_WORDS = 4096  # bytes of a process's output that are searched for an error
PR_SET_PDEATHSIG = 1  # of Linux' <sys/prctl.h>


class Interrupted(KeyboardInterrupt):
    """Raised when a signal stops the program."""

    def __init__(self, number: int):
        super().__init__(f"({signal.Signals(number).name})")
        self.signal = number


def program(script: str) -> list[str]:
    """Return the command line of a process that runs Python code. Unlike with ``python -c`` alone,
    files in the working folder do not take the place of libraries."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path)\n{script}"]


def end_with(parent: int) -> None:
    """Have the system end this process with its parent, even if it hangs. On systems other than
    Linux it ends when it next communicates with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            sys.exit()


def exit_status(code: int | None) -> str:
    """Put the exit status of a process into words; ``None``: it goes on."""
    if code is None:
        return "does not exit"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block: in mid-write torch would turn it into another error. A
    program's own handler is left alone."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        raise KeyboardInterrupt


def is_explained(error: BaseException) -> bool:
    """Say whether an error's message is for people: offrl's own, or the system's about a file."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    is_ours = frame.f_globals.get("__name__", "").startswith("offrl")
    if isinstance(error, PermissionError) and foreign(error) is None:
        return True
    return is_ours and isinstance(error, (ValueError, OSError, ImportError))


def as_explained(error: BaseException, where: str) -> Exception:
    """Return an error to send to another process: itself if explained, else with its traceback."""
    if isinstance(error, Exception) and is_explained(error):
        return error
    return RuntimeError(f"{where}:\n{''.join(traceback.format_exception(error))}")


def foreign(error: BaseException) -> str | None:
    """Find the place where an error came out of code that is neither offrl's nor a library's."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [os.path.dirname(os.path.abspath(__file__)), *map(sysconfig.get_path, kinds)]
    others = ("<", *(f"{folder}{os.sep}" for folder in folders))
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        is_script = name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if not file.startswith(others) and not is_script:
            place = f"{file}, line {line} ({name})"
    return place


class Alarm:
    """Ends the process after ``seconds`` without ``put_off`` in its block, even in C code."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> None:
        self._since = time.monotonic()
        faulthandler.dump_traceback_later(self.seconds, exit=True)

    def __exit__(self, *_: Any) -> None:
        faulthandler.cancel_dump_traceback_later()

    def put_off(self) -> None:
        if time.monotonic() - self._since > 0.1 * self.seconds:  # it takes a thread each time
            self.__enter__()


class Channel:
    """Sends objects through a socket, and receives them."""

    def __init__(self, end: socket.socket):
        self._out, self._in, self._end = end.makefile("wb"), end.makefile("rb"), end

    def send(self, message: Any) -> None:
        pickle.dump(message, self._out, protocol=pickle.HIGHEST_PROTOCOL)
        self._out.flush()

    def receive(self) -> Any:
        return pickle.load(self._in)

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        for file in (self._out, self._in, self._end):
            with suppress(OSError):  # what was not sent is not wanted any more
                file.close()


class Child(Channel):
    """Starts a process that calls ``work(channel, *arguments)``, and is the channel to it.

    Children share nothing, not even a lock, so that one that is killed leaves all others as they
    were. (In a pool of Python's own, one that is killed while it sends leaves the parent waiting.)
    Signals are left to the parent. Libraries compute with one thread in a fresh interpreter.

    start_method: "fork" is fast; "spawn" begins a fresh interpreter.
    does, remedy: its work, and a remedy for too little memory, for messages.
    environ: variables in addition to those of ``os.environ``.
    output: the file that it prints to; it then has a session of its own, so that its children can
        be ended with it. ``None``: as this process. (Many systems schedule by session, which makes
        answers to many small messages slow.)
    """

    def __init__(
        self,
        start_method: str,
        work: Callable[..., None],
        arguments: Sequence[Any],
        does: str,
        remedy: str,
        environ: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ):
        import multiprocessing

        own_end, other_end = socket.socketpair()
        super().__init__(own_end)
        self._does, self._remedy, self._output = does, remedy, output
        context: Any = multiprocessing.get_context(start_method)
        arguments = (work, tuple(arguments), other_end, os.getpid(), output is not None)
        self._process = context.Process(target=_serve, args=arguments)
        environ = {"PYTHONSAFEPATH": "1", **ONE_THREAD, **(environ or {})}  # as ``program``
        try:
            with ExitStack() as meanwhile:
                before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_PARENT)
                # Signals that waited arrive at the end of the block.
                meanwhile.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
                meanwhile.enter_context(other_end)
                if start_method == "spawn":
                    # New processes would import the user's script to know its content, and it may
                    # train as soon as it is run.
                    meanwhile.enter_context(changed_environ(environ))
                    main = sys.modules["__main__"]
                    meanwhile.callback(sys.modules.__setitem__, "__main__", main)
                    sys.modules["__main__"] = types.ModuleType("__main__")
                self._process.start()
                atexit.register(self.close)  # a program may end while it works
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise OSError(
                    f"no process that {does} could be started ({error.strerror}); {remedy}"
                ) from None
            raise
        if output is not None:
            with suppress(OSError):  # the process has ended already
                socket.send_fds(own_end, [b"1"], [output.fileno()])

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, message: Any) -> None:
        with suppress(OSError):  # it has ended; receiving will say so
            super().send(message)

    def receive(self) -> Any:
        """Return a message, or an exception: the process's, or ``ChildProcessError`` if it
        ended."""
        try:
            return super().receive()
        except (EOFError, OSError, pickle.UnpicklingError):
            self._process.join(END_S)
            how, words = exit_status(self._process.exitcode), ""
            if self._output is not None:
                size = self._output.seek(0, os.SEEK_END)
                self._output.seek(max(0, size - LAST_WORDS))
                lines = self._output.read().decode(errors="replace").strip().splitlines()
                words = f": {lines[-1]}" if lines else ""
            return ChildProcessError(
                f"a process that {self._does} ended ({how}){words}; if memory is short, "
                f"{self._remedy}"
            )

    def close(self) -> None:
        """End the process, and what it started itself."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # it may have no session, or none yet
            self._process.join(END_S)
        super().close()
        if self._output is not None:
            self._output.close()
        atexit.unregister(self.close)


AnyChild = TypeVar("AnyChild", bound=Child)


def wait(children: Iterable[AnyChild], timeout: float | None = None) -> list[AnyChild]:
    """Wait until some children have sent something, and return these."""
    from multiprocessing import connection

    waiting: Any = [*children]
    found: Any = connection.wait(waiting, timeout)
    return found


def _serve(
    work: Callable[..., None],
    arguments: Sequence[Any],
    end: socket.socket,
    parent: int,
    has_output: bool,
) -> None:
    import multiprocessing

    end_with(parent)
    # The system's default. In a spawned process libraries would make locks that have names, and are
    # left behind when it is killed.
    multiprocessing.set_start_method("fork", force=True)
    for number in FOR_THE_PARENT:  # not ignored, as processes started here would inherit that
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_PARENT)
    os.environ.pop("PYTHONSAFEPATH", None)  # for this process alone
    if has_output:
        os.setsid()
        _, [output], *_ = socket.recv_fds(end, 1, 1)
        os.dup2(output, 1)
        os.dup2(output, 2)
    channel = Channel(end)
    with suppress(OSError):  # the parent is gone, or wants no more
        try:
            work(channel, *arguments)
        except Exception as error:
            channel.send(as_explained(error, "in a process of its own"))


def in_order(
    make_worker: Callable[..., Callable[[Any], Any]],
    arguments: Sequence[Any],
    items: Iterable[Any],
    num_workers: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Generator[Any, None, None]:
    """Call the function ``make_worker(*arguments)`` with each item, and yield results in order.

    The function is made once in each of ``num_workers`` processes (one per core). Each process
    computes with one thread, has ``environ`` from its start, and is at most two results ahead of
    the reader. An exception that comes from a process is raised.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
    num_workers = max(1, min(num_workers, length_hint(items, num_workers)))
    wording = "shares the work", "use fewer --workers"
    coming, wanted = enumerate(items), 0
    idle: list[Child] = []
    busy: dict[Child, int] = {}  # the item that each works on
    done: dict[int, Any] = {}
    try:
        while True:
            while len(busy) < num_workers and len(done) < 2 * num_workers:
                number, item = next(coming, (-1, None))
                if number < 0:
                    break
                if not idle:
                    work = answer, (make_worker, arguments)
                    idle.append(Child("spawn", *work, *wording, environ))
                busy[idle[-1]] = number
                idle.pop().send(item)
            if not busy and not done:
                return
            for child in wait(busy, 0 if wanted in done else None):
                done[busy[child]] = child.receive()
                idle.append(child)
                del busy[child]
            if wanted in done:
                result = done.pop(wanted)
                if isinstance(result, Exception):
                    raise result
                yield result
                wanted += 1
    finally:
        for child in [*idle, *busy]:
            child.close()


def answer(channel: Channel, make_worker: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Make a worker, and send its result for each item received, until the parent ends."""
    work = make_worker(*arguments)
    while True:
        channel.send(work(channel.receive()))


@contextmanager
def changed_environ(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that start in the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
