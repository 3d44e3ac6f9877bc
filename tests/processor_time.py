"""The processor time of tests: of each, with the processes that it has waited for, and of all.

At its end ``pytest`` says how much it all took, what took most, and which files take longer than
``processor_time.json`` notes. ``--most-seconds N`` makes more than that a failure, and
``--note-seconds`` notes today's times: run all tests for that, on a machine that does nothing else.
"""

import json
import resource
from collections import Counter
from pathlib import Path

import pytest

NOTED = Path(__file__).with_name("processor_time.json")
# A file has that takes so many times as long, and so many seconds more: imports take several, and
# count for the test that happens to be first.
GROWN = 1.5, 10.0
BEGAN = pytest.StashKey[float]()


def seconds():
    """User and system time of this process, and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[BEGAN] = seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.when == "teardown":
        report.processor_time = seconds() - item.stash[BEGAN]
    return report


def pytest_addoption(parser):
    parser.addoption("--most-seconds", type=float, help="processor time above which this fails")
    parser.addoption("--note-seconds", action="store_true", help="note the times of today")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Times())


class _Times:
    """Where the tests' processes report to."""

    def __init__(self):
        self.of_tests = Counter()
        self.of_files = Counter()  # without what only make test-all runs

    def pytest_runtest_logreport(self, report):
        spent = getattr(report, "processor_time", 0.0)
        self.of_tests[report.nodeid] += spent
        if "thorough" not in report.keywords:
            self.of_files[report.nodeid.partition("::")[0]] += spent

    def pytest_terminal_summary(self, terminalreporter, config):
        total = seconds()  # the processes of tests have ended
        noted = json.loads(NOTED.read_text()) if NOTED.exists() else {}
        say = terminalreporter.write_line
        say(f"{total:.0f} s of processor time; most in", bold=True)
        for test, spent in self.of_tests.most_common(10):
            say(f"{spent:8.1f} s  {test}")
        factor, more = GROWN
        for file, spent in self.of_files.most_common():
            before = noted.get(file, 0.0)
            if spent > max(factor * before, before + more):
                say(f"grew: {file}: {spent:.1f} s, was {before:.1f} s", yellow=True)
        if config.option.note_seconds:
            files = {file: round(spent, 1) for file, spent in sorted(self.of_files.items())}
            NOTED.write_text(json.dumps(files, indent=0) + "\n")
        most = config.option.most_seconds
        if most is not None and total > most:
            say(f"more than {most:.0f} s of processor time", red=True)
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED
