"""The process beside a program that works on Ray: it cleans up, and prints what it cannot.

Ray ends a program without a word when Ray's own processes are lost; this process outlives the
program. It is a script, ``python beside_ray.py FOLDER MARK``, as it must import nothing that ends
with Ray. It reads lines of JSON from its input: the addresses that are ``watched``
(``{name: [host, port]}``), and the text to ``say`` if the program ends without withdrawing it.
"""

import glob
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from typing import Any

TIDY_S = 10.0  # seconds that a program has to clean up when its Ray is lost


def follow() -> str:
    """Follow the program to its end, and stop it if its Ray is lost. Returns the text to print."""
    known: dict[str, Any] = {"watched": {}, "say": ""}
    silent, lost, program = Counter[str](), None, os.getppid()
    while os.getppid() == program:  # other processes may keep the pipe open
        if select.select([0], [], [], 0.5)[0]:
            lines = os.read(0, 1 << 16).splitlines()  # each was written as a whole
            if not lines:
                break
            for line in lines:
                known |= json.loads(line)
        for name, address in known["watched"].items():
            try:
                socket.create_connection(address, 5.0).close()
                silent[name] = 0
            except OSError:
                silent[name] += 1
            if silent[name] > 1 and lost is None:
                lost = time.monotonic()
                print(f"offrl: Ray is lost: its {name} does not answer", file=sys.stderr)
                os.kill(program, signal.SIGTERM)
        if lost is not None and time.monotonic() - lost > TIDY_S:  # it hangs in a call of Ray
            os.kill(program, signal.SIGKILL)
    return known["say"]


def clean(folder: str, mark: str) -> None:
    """Remove the folder, and end all processes with the mark, some of which Ray would leave."""
    found = True
    while found:  # a killed process may have started another one
        found = False
        for environ in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(environ, "rb") as file:
                    if mark.encode() in file.read().split(bytes(1)):
                        os.kill(int(environ.split("/")[2]), signal.SIGKILL)
                        found = True
            except OSError:  # it has ended, or is another's
                pass
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if words := follow():
        print(words, file=sys.stderr, flush=True)
    if len(sys.argv) > 1:
        clean(*sys.argv[1:])
