"""The records of a training, and their file ``metrics.jsonl`` in its run."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]

LARGEST = 1e13  # largest epoch, step or second
TAIL = 16_384  # bytes with at least some records


class Recording:
    """The base of trainings, whose records have their ``epoch`` and ``step``."""

    epoch: int
    step: int

    def record(self, kind: str, logs: Mapping[str, float]) -> Record:
        """Make a record of type ``kind`` at the present epoch and step."""
        now = {"epoch": self.epoch, "step": self.step, "time": time.time()}
        return {"type": kind, **now, "logs": dict(logs)}


def read_records(path: Path, last: bool = False) -> tuple[list[Record], int]:
    """Read the records in a ``metrics.jsonl``, or the ``last`` few. Returns them and the number of
    its damaged lines: a killed process or a full disk may have cut one, a crashed file system
    filled some with zeros."""
    if not path.exists():
        return [], 0
    if not path.is_file():  # reading a pipe would block
        raise ValueError(f"{path} is no regular file, so not the log of a run; move it away")
    records, num_damaged = [], 0
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL) if last else 0)
            content = file.read()
    except OSError as error:
        raise OSError(f"{path}: cannot be read ({error.strerror})") from None
    for line in filter(None, content.split(b"\n")):
        try:
            record = json.loads(line)
            is_whole = isinstance(record["type"], str) and isinstance(record["logs"], dict)
            is_whole = is_whole and isinstance(record.get("env", ""), str)
            logs = record["logs"].values() if is_whole else ()
            is_whole = is_whole and all(isinstance(x, float) or abs(x) < 1e300 for x in logs)
            position = [record[key] + 0 for key in ("epoch", "step", "time")]
            is_whole = is_whole and all(0 <= x < LARGEST for x in position)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_whole = False
        if is_whole:
            records.append(record)
        num_damaged += not is_whole
    return records, num_damaged
