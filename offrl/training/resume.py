"""Finds what a run goes on from: its newest whole checkpoint, and the records of its log."""

import logging
import re
import shutil
from collections.abc import Iterator, Mapping
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
    """``last.pth``; where that is damaged or missing ``previous.pth``, then the newest whole one of
    ``models/``, which is said. A damaged ``last.pth`` is kept as ``last-damaged.pth``.

    ``ValueError`` if there is none: a run does not begin again unasked.
    """
    problems: list[str] = []
    for path in _candidates(run):
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
    """``ValueError`` that names what a checkpoint lacks to go on from it."""

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


def _candidates(run: RunFolder) -> Iterator[Path]:
    yield run.last_checkpoint
    yield run.previous_checkpoint
    epochs = {p: re.search(r"epoch_(\d+)", p.name) for p in run.models.glob("*.pth")}
    numbered = {path: int(found[1]) for path, found in epochs.items() if found}
    yield from sorted(numbered, key=lambda path: numbered[path], reverse=True)


def _say_what_is_repeated(run: RunFolder, problems: list[str], path: Path, step: int) -> None:
    records, _ = read_records(run.metrics)
    reached = max((record["step"] for record in records), default=step)
    repeated = f"steps {step + 1} to {reached} are repeated" if reached > step else ""
    log.warning(
        f"going on from {path.relative_to(run.path)}, step {step}: "
        f"{repeated or 'as far as the log says, nothing is repeated'} ({'; '.join(problems)})"
    )
