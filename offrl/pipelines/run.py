"""A pipeline in a run folder, for ``offrl train`` and ``offrl evaluate``."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from offrl import parallel
from offrl.config.pipeline import PipelineConfig
from offrl.online.trainer import summary_of
from offrl.pipelines.pipeline import Pipeline
from offrl.reports.plot import write_learning_curve
from offrl.training.checkpointer import Checkpointer
from offrl.training.interrupts import Interrupts
from offrl.training.launch import Result, writing
from offrl.training.progress import Progress
from offrl.training.run import RunFolder


@dataclass
class PipelineResult(Result):
    """The result of a training of a user's own parts, and the places of its files."""

    steps: int
    trainings: int
    last: Mapping[str, float]  #: The ``Return`` of the last episodes.

    def describe(self) -> dict[str, object]:
        lines = super().describe()
        del lines["video"]
        trained = f"trained {self.trainings} time{'' if self.trainings == 1 else 's'}"
        lines["result"] = f"{return_line(self.last)}, {self.steps} steps, {trained}"
        lines["checkpoint"] = self.checkpoint or "none, as nothing was trained"
        return lines


def train_pipeline(
    config: PipelineConfig,
    run: RunFolder | None = None,
    interrupts: Interrupts | None = None,
    config_file: Path | None = None,
) -> PipelineResult:
    """Train the parts that a file combines. Raises ``ValueError`` or ``FileNotFoundError``, before
    anything is written, if they cannot be trained.

    run: An earlier run to resume from its newest weights (``RunFolder.open``).
    interrupts: Lets a program stop or save the training by signals.
    config_file: The file of the config, which is copied into a new run folder.
    """
    if parallel.num_ranks() > 1:
        raise ValueError("a pipeline learns in one process; start it without torchrun")
    config = config.model_copy(deep=True)
    if run is None:
        RunFolder.check_place(config)
    with closing(Pipeline(config, run, config_file)) as pipeline:
        pipeline.interrupts = interrupts or pipeline.interrupts
        with writing(pipeline) as logger:
            pipeline.models = pipeline.run.models
            try:
                for _ in Progress(pipeline)(Checkpointer(pipeline)(logger(pipeline()))):
                    pass
            except (KeyboardInterrupt, ChildProcessError):  # stopped between trainings
                pipeline.save()
                raise
            pipeline.save()
    run = pipeline.run
    curve = write_learning_curve(run)
    run.write_config(config, is_finished=True)
    files = run, pipeline.checkpoint, None, curve, None, ""
    done = pipeline.step, pipeline.epoch, summary_of([*pipeline.last])
    return PipelineResult(*files, pipeline.problems, *done)


def evaluate_pipeline(config: PipelineConfig) -> dict[str, float]:
    """Play ``episodes`` with the explorers of a file, without exploring. Returns the mean
    ``Return`` and ``Horizon`` of the ``Episodes``, and the number of failed ones (``Crashed``)."""
    config = config.model_copy(update={"mode": "evaluate"})
    with (
        closing(Pipeline(config)) as pipeline,
        tqdm(total=config.episodes, unit="episode", dynamic_ncols=True, disable=None) as bar,
    ):
        for record in pipeline.evaluate():
            bar.update(record["type"] == "episode")
            bar.set_postfix_str(return_line(record["logs"]), refresh=False)
    return record["logs"]


def return_line(logs: Mapping[str, float]) -> str:
    """Write a line about the returns of episodes."""
    if "Return" not in logs:
        return "no episode ended"
    spread = f" ± {logs['Return_Std']:.2f}" if "Return_Std" in logs else ""
    return f"return {logs['Return']:.2f}{spread}, n = {logs['Episodes']:.0f}"
