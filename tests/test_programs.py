"""Programs that are forked are as those that ``subprocess`` starts."""

import json
import os
import re
import signal
import subprocess
import sys

import programs
import pytest
from conftest import heeding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="they are forked on Linux alone"),
]

# What a program sees of the world, and what it is given.
DESCRIBE = """
import gc, json, multiprocessing, os, resource, signal, sys, tempfile

def child(connection):
    connection.send((__name__, sys.argv, sys.path, os.getcwd(), os.environ.get("OWN")))

def describe():
    main = sys.modules["__main__"]
    streams = [sys.stdin, sys.stdout, sys.stderr]
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "argv": [sys.argv, sys.orig_argv, sys.executable, sys.flags],
        "path": sys.path,
        "main": [__name__, main.__name__, globals() is vars(main), main.__package__],
        "file": [globals().get("__file__"), describe.__code__.co_filename],
        "spec": getattr(main.__spec__, "name", None),
        "environ": dict(os.environ),
        "folders": [os.getcwd(), tempfile.gettempdir()],
        "streams": [
            [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
            for s in streams
        ],
        "own streams": [s is getattr(sys, f"__{s.name[1:-1]}__") for s in streams],
        "files": [sorted(os.listdir("/proc/self/fd")), [os.get_inheritable(n) for n in range(3)]],
        "given": sys.stdin.read(),
        "family": [os.getppid(), os.getpgid(0), os.getsid(0)],
        "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "handlers": {n: repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
        "mask": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "limits": [*map(resource.getrlimit, limits), os.umask(0o22), os.nice(0)],
        "cores": [*os.sched_getaffinity(0)],
        "threads": len(os.listdir("/proc/self/task")),
        "state": [gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit()],
        "time": sum(os.times()[:2]) < 1,
        "processes": [multiprocessing.current_process().name, multiprocessing.active_children()],
    }

if __name__ == "__main__":
    found = describe()
    if main_can_be_imported := found["file"][0]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        process.start()
        theirs.close()
        found["child"] = ours.recv()
        process.join()
        found["code"] = process.exitcode
    print("not a line of JSON", file=sys.stderr)
    print(json.dumps(found))
"""
KINDS = {
    "module": ["-m", "package.describe"],
    "code": ["-c", DESCRIBE],
    "script": ["package/describe.py"],
    "link": ["link.py"],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/describe.py").write_text(DESCRIBE)
    (tmp_path / "link.py").symlink_to("package/describe.py")
    return tmp_path


def both(words, **options):
    """What came of a program, really started and forked."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    with heeding():
        real = subprocess.run([sys.executable, *words], check=False, **options)
    return real, programs.run([sys.executable, *words], check=False, **options)


def assert_same(expected, found, but=()):
    assert found.keys() == expected.keys()
    for what in expected.keys() - but:
        assert found[what] == expected[what], what


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_sees_the_same_world(kind, folder):
    environ = {
        **{n: value for n, value in os.environ.items() if programs.READ_AT_START.match(n)},
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"package:{folder}::/nowhere:package",
        "TMPDIR": str(folder),
        "EMPTY": "",
        "OWN": "given",
    }
    options = {"cwd": folder, "env": environ, "input": "a\r\nb"}
    real, forked = both([*KINDS[kind], "-x", "a word"], **options)
    assert (real.returncode, real.stderr) == (0, "not a line of JSON\n")
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
    expected, found = json.loads(real.stdout), json.loads(forked.stdout)
    assert_same(expected, found)
    assert found["environ"] == environ and found["family"][0] == os.getpid()


@pytest.mark.parametrize("starts", [False, True])
def test_streams_sessions_and_environments_are_those_asked_for(starts, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OWN", "inherited")
    (folder / "out.txt").write_text("before\n")
    with open("out.txt", "a") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
        both(["link.py"], start_new_session=starts, **streams)
    before, *lines = (folder / "out.txt").read_text().splitlines()
    real, forked = map(json.loads, lines[1::2])
    assert before == "before" and lines[::2] == ["not a line of JSON"] * 2
    assert real["leads"] == forked["leads"] == [starts, starts]
    # Libraries of this process may have set variables that it does not know of.
    assert_same(real, forked, but={"environ"} | ({"family"} if starts else set()))
    assert forked["environ"] == dict(os.environ) and forked["environ"]["OWN"] == "inherited"
    inherited = {"stdin": subprocess.DEVNULL, "stdout": None, "stderr": None}
    both(["link.py"], **inherited)
    assert_same(*map(json.loads, capfd.readouterr().out.splitlines()), but={"environ"})
    ours, theirs = os.pipe()
    both(["-c", f"import os; os.write({theirs}, b'passed')"], pass_fds=[theirs])
    assert os.read(ours, 100) == b"passedpassed"
    os.close(ours)
    os.close(theirs)


# Much that comes before the end, or with it.
LATE = r"""
import atexit, ctypes, logging, tempfile, warnings

class Left:
    def __del__(self):
        sys.stdout.write("is freed\n")

logging.warning("careful")
warnings.warn("careful")
atexit.register(sys.stdout.write, "late\n")
atexit.register(lambda: 1 / 0)
threading.Timer(0.05, os.write, [1, b"thread\n"]).start()
threading.Thread(target=lambda: 1 / 0).start()
threading.Thread(target=time.sleep, args=[99], daemon=True).start()
multiprocessing.Process(target=time.sleep, args=[99], daemon=True).start()
multiprocessing.Process(target=os.write, args=[1, b"child\n"]).start()
left = Left()
left_folder = tempfile.TemporaryDirectory(dir=".", ignore_cleanup_errors=True)
left_file = open("left", "w")
left_file.write("all of it")
sys.stdout.write("main\n")
ctypes.CDLL(None).printf(b"printed by C\n")
sys.exit(6)
"""
ENDS = {
    "ends": "print('no newline', end='')",
    "status": "sys.exit(3)",
    "none": "sys.exit()",
    "text": "print('first'); sys.exit('text')",
    "raises": "def fail():\n    return 1 / 0\nfail()",
    "raises from": "try:\n    fail()\nexcept NameError as error:\n    raise OSError() from error",
    "no syntax": "1 +",
    "interrupted": "raise KeyboardInterrupt",
    "signal": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "at once": "print('lost'); os._exit(5)",
    "hook": "sys.excepthook = lambda *seen: print('seen', seen[:2]); 1 / 0",
    "output closed": "os.close(1); print('lost')",
    "late": LATE,
}
KINDS_OF_ENDS = [
    *((what, "script") for what in ENDS),
    *((what, kind) for what in ("status", "raises", "interrupted") for kind in ("-c", "-m")),
]


@pytest.mark.parametrize(("what", "kind"), KINDS_OF_ENDS)
def test_a_program_ends_in_the_same_way(what, kind, tmp_path):
    script, found = tmp_path / "script.py", []
    script.write_text(f"import multiprocessing, os, signal, sys, threading, time\n{ENDS[what]}")
    words = {"script": ["script.py"], "-c": ["-c", script.read_text()], "-m": ["-m", "script"]}
    for ran in both(words[kind], cwd=tmp_path):
        said = re.sub("0x[0-9a-f]+", "0x", ran.stderr)
        found.append((ran.returncode, sorted(ran.stdout.splitlines()), said))
    assert found[0] == found[1]
    left = {path.name for path in tmp_path.iterdir()} - {"script.py", "__pycache__"}
    if what == "late":
        assert (found[0][0], len(found[0][1])) == (6, 6)
        assert (tmp_path / "left").read_text() == "all of it"
        left.remove("left")
    assert not left


def test_output_that_nobody_reads_is_said():
    found = []
    for popen in (subprocess.Popen, programs.Popen):
        command = [sys.executable, "-c", "import sys; sys.stdin.read(); print('lost')"]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with popen(command, text=True, **pipes) as process:
            process.stdout.close()
            process.stdin.close()
            found.append((process.stderr.read(), process.wait()))
    assert found[0] == found[1] and "BrokenPipeError" in found[0][0] and found[0][1] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_arrive(number):
    code = "import time; print('ready', flush=True); time.sleep(60)"
    found = []
    for popen in (subprocess.Popen, programs.Popen):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with heeding():
            process = popen([sys.executable, "-c", code], start_new_session=True, **pipes)
        assert process.stdout.readline() == "ready\n" and process.poll() is None
        os.killpg(process.pid, number)
        found.append((*process.communicate(timeout=60), process.returncode))
    assert found[0] == found[1] and found[0][2] == -number


def test_what_takes_too_long_is_killed():
    code = "import time; print('begun', flush=True); time.sleep(60)"
    for run in (subprocess.run, programs.run):
        with pytest.raises(subprocess.TimeoutExpired) as late:
            run([sys.executable, "-c", code], timeout=1, stdout=subprocess.PIPE, check=False)
        assert late.value.stdout == b"begun\n"
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        programs.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)


def test_what_cannot_be_forked_is_refused(tmp_path):
    for popen in (subprocess.Popen, programs.Popen):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            popen([sys.executable, "-c", ""], cwd=tmp_path / "nowhere")
    for words, options in (
        (["-c", ""], {"preexec_fn": print}),
        (["-c", ""], {"umask": 0}),
        (["-u", "-c", ""], {}),
        (["-c", ""], {"env": os.environ | {"PYTHONHASHSEED": "0"}}),
    ):
        with pytest.raises(ValueError, match="subprocess"):
            programs.Popen([sys.executable, *words], **options)


def test_what_is_random_differs():
    code = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))"
    said = [
        programs.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
        for _ in range(2)
    ]
    first, second = (text.split() for text in said)
    assert len(first) == 3 and not set(first) & set(second)
