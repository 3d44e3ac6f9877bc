"""Finds the newest whole checkpoint of a run, to go on from."""

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offrl.checkpoint import read_checkpoint
from offrl.outputs import whole_file
from offrl.reports.records import read_records
from offrl.training.run import RunFolder

log = logging.getLogger(__name__)

# What going on takes beyond what a policy needs to act.
PARTS = (
    "variable_state.epoch variable_state.step model.nets model.optimizers rng.torch "
    "loader.position|online.step provenance"
).split()


def newest_checkpoint(run: RunFolder) -> tuple[Path, dict[str, Any]]:
    """Read ``last.pth``, or with a warning ``previous.pth`` or the newest whole one of ``models/``.
    A damaged ``last.pth`` is kept as ``last-damaged.pth``. Returns the path and the content.

    Raises ``ValueError`` if there is none: a run does not begin again unasked.
    """
    problems: list[str] = []
    numbers = {p: re.search(r"epoch_(\d+)", p.name) for p in run.models.glob("*.pth")}
    epochs = {path: int(number[1]) for path, number in numbers.items() if number}
    newest_first = sorted(epochs, key=lambda path: epochs[path], reverse=True)
    for path in (run.last_checkpoint, run.previous_checkpoint, *newest_first):
        try:
            state = read_checkpoint(path)
            check_parts(state, path)
        except (ValueError, FileNotFoundError) as error:
            problems.append(str(error).partition("; ")[0])  # without advice
            continue
        if path != run.last_checkpoint:
            if run.last_checkpoint.exists():
                run.last_checkpoint.replace(run.path / "last-damaged.pth")
            with whole_file(run.last_checkpoint) as file:
                shutil.copyfile(path, file)
            _say_what_is_repeated(run, problems, path, state["variable_state"]["step"])
        return path, state
    raise ValueError(
        f"{run.path}: no checkpoint to go on from ({'; '.join(problems)}); train it anew: "
        f"offrl train --config {run.config_file}"
    )


def check_parts(state: Mapping[str, Any], where: object) -> None:
    """Raise ``ValueError`` that names what a checkpoint lacks to go on from it."""

    def has(part: str) -> bool:
        found: Any = state
        for name in part.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found is not None

    lacking = [part for part in PARTS if not any(map(has, part.split("|")))]
    if lacking:
        raise ValueError(
            f"{where}: lacks {', '.join(lacking)}, so that no training goes on from it; it serves "
            "as a policy, and a new run can start from its weights (experiment.ckpt_path)"
        )


def _say_what_is_repeated(run: RunFolder, problems: list[str], path: Path, step: int) -> None:
    records, _ = read_records(run.metrics)
    reached = max((record["step"] for record in records), default=step)
    repeated = f"steps {step + 1} to {reached} are repeated" if reached > step else ""
    log.warning(
        f"going on from {path.relative_to(run.path)}, step {step}: "
        f"{repeated or 'as far as the log says, nothing is repeated'} ({'; '.join(problems)})"
    )
