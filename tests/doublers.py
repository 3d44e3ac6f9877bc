"""What processes of tests are asked to do, in a file that takes them no time to import."""

import multiprocessing
import os
import signal
import time

from offrl.outputs import new_file


def make_slow_doubler(name, factor):
    def double(item):
        if item == "explained":
            new_file(__file__)  # which offrl refuses in words
        if item == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "environment":
            return os.environ["OMP_NUM_THREADS"], os.environ["OFFRL_TEST"]
        time.sleep(0.05 if item % 2 else 0)  # the odd ones are overtaken
        return factor * item, os.getpid()

    return double


def make_locker():
    return lambda _: multiprocessing.Lock()._semlock.name


def make_nothing(name):
    raise ValueError(f"{name} cannot be made")


def make_counter(name):
    calls = []

    def count(item):
        calls.append(item)
        return len(calls)

    return count


def make_sleeper():
    def sleep(item):
        if item > 1:
            time.sleep(60)
        return os.getpid()

    return sleep
