"""The ``offrl`` program: ``offrl train``, ``offrl rollout``, ...; also ``python -m offrl``."""

import argparse
import importlib
import logging
import os
import pkgutil
import re
import select
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from offrl import __version__, tools
from offrl.links import FOLLOWED
from offrl.modules import allow, import_all, modules_of, named
from offrl.processes import Interrupted, changed_environ, foreign, is_explained


class TerminalHandler(logging.Handler):
    """Writes offrl's log messages to the terminal without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(self.format(record), file=sys.stderr)


def commands(wanted: str | None = None) -> dict[str, ModuleType]:
    """Import the modules of ``offrl.tools``, by the names of their commands: only the one
    ``wanted``, or all of them if there is no such command."""
    names = {m.name.replace("_", "-"): m.name for m in pkgutil.iter_modules(tools.__path__)}
    if wanted in names:
        names = {wanted: names[wanted]}
    return {name: importlib.import_module(f"offrl.tools.{names[name]}") for name in names}


def make_parser(modules: Mapping[str, ModuleType]) -> argparse.ArgumentParser:
    """Make the parser of the program's arguments, with a parser for each command."""
    parser = argparse.ArgumentParser(
        prog="offrl",
        description="Train robot policies from demonstrations, evaluate and record them.",
        epilog="example: offrl train --config bc.json",
    )
    parser.add_argument("--version", action="version", version=f"offrl {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in modules.items():
        says, example = tools.described(command)
        text = says[:1].lower() + says[1:].rstrip(".")
        subparser = subparsers.add_parser(name, help=text, description=says, epilog=example)
        command.add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. Errors that the user can correct are one line."""
    # Threads that wait spin for so many rounds before they sleep: libgomp's default makes trainings
    # side by side ten times slower, this one costs nothing (docs/benchmarks.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # NumPy starts a thread on each core when it is imported, and each spins for 2**26 cycles (0.1 s
    # of processor time) before it sleeps. These sleep after 2**10.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    argv = sys.argv[1:] if argv is None else argv
    modules = commands(argv[0] if argv else None)
    args = make_parser(modules).parse_args(argv)
    # The command without the number of processes, as no result depends on that.
    args.words = re.sub(r" --workers[ =]\d+", "", shlex.join(["offrl", *argv]))
    package, terminal = logging.getLogger("offrl"), TerminalHandler()
    package.setLevel(logging.INFO)
    package.addHandler(terminal)
    try:
        follows = {FOLLOWED: "1"} if getattr(args, "follow_links", False) else {}
        with _signals_interrupt(), changed_environ(follows):
            # A user's modules may be in this folder. Nothing in it is imported unless named.
            allow([*named(), *modules_of(getattr(args, "env", ""))], os.getcwd())
            import_all(getattr(args, "module", []), os.getcwd())
            return modules[args.command].run(args)
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except SystemExit as error:
        where = foreign(error) or "a library"
        print(f"offrl: error: {where} called sys.exit({error.code!r})", file=sys.stderr)
        return 1
    except Exception as error:
        if behind := _interrupt_behind(error):
            return _interrupted(behind)
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        if is_explained(error):
            print(f"offrl: error: {error}", file=sys.stderr)
            return 1
        place = foreign(error)
        whose = f"{place}, which is not offrl's code" if place else "what offrl does not foresee"
        print(f"offrl: error: {type(error).__name__} in {whose}:", file=sys.stderr)
        traceback.print_exc()
        return 1
    finally:
        package.removeHandler(terminal)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, with the same cleanup and messages."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted(number)

    is_main = threading.current_thread() is threading.main_thread()
    handlers: dict[signal.Signals, Any] = dict.fromkeys([signal.SIGTERM, signal.SIGHUP], interrupt)
    handlers[signal.SIGUSR1] = lambda *_: None  # there is nothing to save yet
    numbers = [n for n in handlers if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, handlers[number])
    after, reported = signal.SIG_DFL, sys.unraisablehook

    def unraised(lost: Any) -> None:
        # Python was in a callback that cannot raise (a weak reference, ``__del__``): send the
        # signal once more, in a moment.
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            return reported(lost)
        number, left = getattr(lost.exc_value, "signal", signal.SIGINT), threading.Event()

        def send_again() -> None:
            left.wait()  # or the signal would be lost in here
            time.sleep(0.01)
            os.kill(os.getpid(), number)

        try:
            threading.Thread(target=send_again).start()
        finally:
            left.set()

    sys.unraisablehook = unraised
    try:
        yield
    except KeyboardInterrupt:
        after = signal.SIG_IGN  # the process ends now, whatever else comes
        numbers += [signal.SIGINT] if is_main else []
        raise
    finally:
        sys.unraisablehook = reported
        for number in numbers:
            signal.signal(number, after)


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    print(f"offrl: interrupted {interrupt}".rstrip(), file=sys.stderr)
    return 128 + getattr(interrupt, "signal", signal.SIGINT)


def _interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Find the interrupt that led to an error: h5py makes a SystemError of one within its locks."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _nobody_reads() -> bool:
    """Say whether the reader of the output has ended, as ``head`` does; discard further output."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    has_ended = bool(poll.poll(0))
    if has_ended:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return has_ended


if __name__ == "__main__":
    sys.exit(main())
