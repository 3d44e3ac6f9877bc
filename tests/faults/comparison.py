"""What two runs that should be the same are compared by."""

import csv
import json
import re

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from offrl.checkpoint import read_checkpoint

TIMES = ("time", "Collect_Time", "Train_Time", "Valid_Time", "Wait_Time", "Transport_Time")


def records(run, name="metrics.jsonl"):
    """Without times; episodes end in an order of their own."""
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    for record in lines:
        for logs in (record, record["logs"]):
            for key in TIMES:
                logs.pop(key, None)
    return sorted(lines, key=lambda r: (r["epoch"], r["type"], r["logs"].get("Seed", 0)))


def rows(run):
    with open(run / "metrics.csv") as file:
        return sorted((r["type"], r["epoch"], r["name"]) for r in csv.DictReader(file))


def text(run):
    """The lines of ``log.txt`` that tell of records, without the time of day and times."""
    lines = [line[24:] for line in (run / "logs/log.txt").read_text().splitlines()]
    told = [line for line in lines if line.startswith("epoch ")]
    return [re.sub(r"(\w+_Time) \S+", r"\1", line) for line in told]


def scalars(run):
    events = EventAccumulator(str(run / "logs/tb"))
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        if not tag.startswith("Timing"):
            found[tag] = [(e.step, e.value) for e in events.Scalars(tag)]
    return found


def weights(run, name="last.pth"):
    """All that the training had, as one flat dict of tensors and numbers."""
    content = read_checkpoint(run / name)
    state = content["variable_state"]
    for key in ("seconds", "log_size"):
        state.pop(key)
    flat = {}

    def add(prefix, value):
        if isinstance(value, list) and any(isinstance(inner, torch.Tensor) for inner in value):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix}/{key}", inner)
        else:
            flat[prefix] = value

    position = "online" if "online" in content else "loader"
    for part in ("model", "variable_state", "rng", position):
        add(part, content[part])
    return flat


def same(first, second):
    assert first.keys() == second.keys()
    different = [
        key
        for key, value in first.items()
        if not (
            torch.equal(value, second[key])
            if isinstance(value, torch.Tensor)
            else value == second[key]
        )
    ]
    return not different, different


def assert_same_run(first, second):
    assert records(first) == records(second)
    assert rows(first) == rows(second)
    equal, different = same(weights(first), weights(second))
    assert equal, different
    if (first / "logs/log.txt").exists():
        assert sorted(text(first)) == sorted(text(second))
    if (first / "logs/tb").exists():
        assert scalars(first) == scalars(second)
