"""A pipeline in a run folder, for ``offrl train`` and ``offrl evaluate``."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from tqdm import tqdm

from offrl import cluster, parallel
from offrl.config.files import read_config_file
from offrl.config.pipeline import PipelineConfig
from offrl.online.trainer import summary_of
from offrl.pipelines.pipeline import Pipeline
from offrl.reports.plot import NO_CURVE, write_learning_curve
from offrl.reports.records import Record, read_records
from offrl.training.interrupts import Interrupts
from offrl.training.logger import Logger
from offrl.training.run import RunFolder, note_changes, note_provenance

log = logging.getLogger(__name__)


@dataclass
class PipelineResult:
    """What became of a training, and where its files are."""

    run: RunFolder
    checkpoint: Path | None  #: The last one; ``None`` if nothing was trained.
    learning_curve: Path | None
    steps: int
    trainings: int
    last: Mapping[str, float]  #: The ``Return`` of the last episodes.
    problems: list[str]  #: What went wrong although the training went on to its end.
    is_measured = True  # by the training itself

    def describe(self) -> dict[str, object]:
        """The lines that ``offrl train`` prints at the end, by their labels."""
        trained = f"trained {self.trainings} time{'' if self.trainings == 1 else 's'}"
        lines = {
            "result": f"{return_line(self.last)}, {self.steps} steps, {trained}",
            "run folder": self.run.path,
            "checkpoint": self.checkpoint or "none, as nothing was trained",
            "learning curve": self.learning_curve or NO_CURVE,
            "TensorBoard": f"tensorboard --logdir {self.run.logs}",
        }
        return lines | ({"problems": "; ".join(self.problems)} if self.problems else {})


def train_pipeline(
    config: PipelineConfig,
    run: RunFolder | None = None,
    interrupts: Interrupts | None = None,
    config_file: Path | None = None,
) -> PipelineResult:
    """Train the parts that a file combines. Raises ``ValueError`` or ``FileNotFoundError`` for what
    cannot be trained, before anything is written.

    run: an earlier run to go on with, from its newest weights (``RunFolder.open``).
    interrupts: what a program uses to stop the training by signals; what was trained is saved.
    config_file: the file, of which the run folder gets a copy.
    """
    if parallel.num_ranks() > 1:
        raise ValueError("a pipeline learns in one process; start it without torchrun")
    interrupts = interrupts or Interrupts()
    before = [] if run is None else read_records(run.metrics)[0]
    position = {key: max((r[key] for r in before), default=0) for key in ("epoch", "step")}
    config = config.model_copy(deep=True)
    note_provenance(config, None, run)
    known = config
    if run is None:
        RunFolder.check_place(config)
    else:
        note_changes(config, read_config_file(run.config_file), position["step"])
        if any(path.is_file() for path in run.models.rglob("*")):
            known = config.model_copy(update={"checkpoint": str(run.models)})
    with closing(Pipeline(known, **position)) as pipeline, interrupts.wait():
        if run is None:
            fill = None if config_file is None else lambda new: shutil.copy(config_file, new.path)
            run = RunFolder.create(config, fill)
        epoch = pipeline.epoch
        asked = SimpleNamespace(  # by a ``Logger``, of a training
            config=pipeline.config,
            run=run,
            epoch=epoch,
            restored={},
            environments=[config.env_para.env_name],
            has_given=lambda record: record["epoch"] <= epoch,
        )
        with closing(Logger(asked)) as logger:
            log.info("run folder: %s", run.path)
            run.write_config(config, is_finished=False)
            go_on = f"go on with: offrl train --resume {run.path}"
            pipeline.models, pipeline.receiving = run.models, interrupts.at_once
            try:
                with cluster.going_on(go_on):
                    for _ in _shown(logger(pipeline()), config.max_steps, "step", interrupts.check):
                        if interrupts.saves:
                            pipeline.save()
                            interrupts.saves = False
            except (KeyboardInterrupt, ChildProcessError):  # between two trainings
                pipeline.save()
                log.info(go_on)
                raise
            finally:
                run.unlock()
            pipeline.save()
    curve = write_learning_curve(run)
    run.write_config(config, is_finished=True)
    return PipelineResult(
        *(run, pipeline.checkpoint, curve, pipeline.step, pipeline.epoch),
        *(summary_of(pipeline.last), pipeline.problems),
    )


def evaluate_pipeline(config: PipelineConfig) -> dict[str, float]:
    """Let the explorers of a file act without exploring, for ``episodes``. Returns the mean
    ``Return`` and ``Horizon`` of the ``Episodes``, and how many could not be run (``Crashed``)."""
    config = config.model_copy(update={"mode": "evaluate"})
    with closing(Pipeline(config)) as pipeline:
        records = pipeline.evaluate()
        *_, last = _shown(records, config.episodes, "episode", lambda: None)
    return last["logs"]


def _shown(
    records: Iterable[Record], total: int, unit: str, check: Callable[[], None]
) -> Iterator[Record]:
    """The same records, with a bar over the steps or episodes."""
    with tqdm(total=total, unit=unit, dynamic_ncols=True, disable=None) as bar:
        for record in records:
            kind, logs = record["type"], record["logs"]
            if unit == "step":
                bar.update(record["step"] - bar.n)
            else:
                bar.update(kind == "episode")
            if kind == "rollout":
                bar.write(f"step {record['step']}: evaluation: {return_line(logs)}")
            elif "Return" in logs:
                bar.set_postfix_str(return_line(logs), refresh=False)
            yield record
            check()


def return_line(logs: Mapping[str, float]) -> str:
    """The returns of episodes in words."""
    if "Return" not in logs:
        return "no episode ended"
    spread = f" ± {logs['Return_Std']:.2f}" if "Return_Std" in logs else ""
    return f"return {logs['Return']:.2f}{spread}, n = {logs['Episodes']:.0f}"
