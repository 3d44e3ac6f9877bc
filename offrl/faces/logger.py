"""A logger to decorate a trainer with, without a run folder or a config."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from offrl.config import Section
from offrl.lazy import needed
from offrl.reports.records import Record

RecordsOf = Callable[..., Iterator[Record]]

POSITION = {"step", "sample_step", "type", "log_type", "epoch", "time"}  # of a record


def logger(
    records_of: RecordsOf, folder: str | Path = "runs/online", wandb_project: str | None = None
) -> RecordsOf:
    """Decorate a trainer's generator so that the numbers of its records are written to TensorBoard:
    ``Trainer.__call__ = logger(Trainer.__call__)``. Records pass unchanged.

    The trainer may be of any class, and its records any dicts with numbers, in ``logs`` or not, a
    kind (``type``, ``log_type``) and a step (``step``, ``sample_step``; else records are counted).

    folder: the place of a new folder for each training, ``NAME-NUMBER``, with the name of its
        config or class.
    wandb_project: a Weights & Biases project to write to as well (with ``WANDB_MODE=offline`` into
        the folder); ``None``: as in ``experiment.logging`` of the config (``log_wandb``).
    """

    @wraps(records_of)
    def logged(trainer: Any, *arguments: Any, **options: Any) -> Iterator[Record]:
        from torch.utils.tensorboard import SummaryWriter

        name, project, config = type(trainer).__name__, wandb_project, getattr(trainer, "config", 0)
        if isinstance(config, Section):
            name, said = config["experiment"].name, config["experiment"].logging
            project = project or (said.wandb_proj_name if said.log_wandb else None)
        parent = Path(folder).expanduser()
        places = (parent / f"{name}-{number}" for number in itertools.count(1))
        place = next(place for place in places if not place.exists())
        place.mkdir(parents=True)
        wandb_run = None
        if project:
            wandb = needed("wandb", "wandb", "logger(wandb_project=...): wandb is missing")
            content = config.to_dict() if isinstance(config, Section) else None
            wandb_run = wandb.init(project=project, name=place.name, dir=place, config=content)
        with SummaryWriter(place) as writer, wandb_run or nullcontext():
            for count, record in enumerate(records_of(trainer, *arguments, **options), 1):
                if not isinstance(record, Mapping):
                    raise ValueError(f"{name}: its record {count} is {record!r:.50}, not a dict")
                step = record.get("step", record.get("sample_step", count))
                numbers = dict(_numbers(record))
                for tag, value in numbers.items():
                    writer.add_scalar(tag, value, step, record.get("time"))
                if wandb_run:
                    wandb_run.log(numbers | {"step": step})
                yield record

    return logged


def _numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record, by their tags."""
    kind = str(record.get("type", record.get("log_type", "log"))).capitalize()
    beside = {key: x for key, x in record.items() if key not in POSITION}
    for name, value in (record.get("logs") or beside).items():
        with suppress(TypeError, ValueError, RuntimeError):  # texts, arrays
            yield f"{kind}/{name}", float(value.item() if hasattr(value, "item") else value)
