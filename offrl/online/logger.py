"""A logger to decorate a trainer with, without a run folder or a config."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from offrl.online.trainer import Record, Trainer

RecordsOf = Callable[[Any], Iterator[Record]]


def logger(
    records_of: RecordsOf, folder: str | Path = "runs/online", wandb_project: str | None = None
) -> RecordsOf:
    """Have what a trainer yields written to TensorBoard as it passes, every number by its kind:
    ``Trainer.__call__ = logger(Trainer.__call__)``. The records stay as they are.

    folder: a new folder is made in it for each training, ``NAME-NUMBER``.
    wandb_project: the project of Weights & Biases to write to as well (with ``WANDB_MODE=offline``
        into the folder); ``None``: as ``experiment.logging`` of the config says (``log_wandb``).
    """

    @wraps(records_of)
    def logged(trainer: Trainer) -> Iterator[Record]:
        from torch.utils.tensorboard import SummaryWriter

        place = _new_folder(Path(folder), trainer.config.experiment.name)
        said = trainer.config.experiment.logging
        project = wandb_project or (said.wandb_proj_name if said.log_wandb else None)
        wandb_run = _wandb_run(trainer, place, project) if project else None
        with SummaryWriter(place) as writer, wandb_run or nullcontext():
            for record in records_of(trainer):
                kind = record["type"].capitalize()
                numbers = {f"{kind}/{name}": x for name, x in record["logs"].items()}
                for tag, value in numbers.items():
                    writer.add_scalar(tag, value, record["step"], record["time"])
                if wandb_run:
                    wandb_run.log(numbers | {"step": record["step"]})
                yield record

    return logged


def _new_folder(parent: Path, name: str) -> Path:
    places = (parent.expanduser() / f"{name}-{number}" for number in itertools.count(1))
    place = next(place for place in places if not place.exists())
    place.mkdir(parents=True)
    return place


def _wandb_run(trainer: Trainer, place: Path, project: str) -> Any:
    try:
        import wandb
    except ImportError:
        raise ImportError(
            "logger(wandb_project=...): wandb is not installed; pip install 'offrl[wandb]'"
        ) from None
    return wandb.init(project=project, name=place.name, dir=place, config=trainer.config.to_dict())
