"""Shows the progress of a training at a terminal."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping

from tqdm import tqdm

from offrl.acting.episode import REACHED
from offrl.training.loop import Loop, Record


class Progress:
    """Shows a bar over the steps, or lines without a terminal, and a line per evaluation."""

    SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, trainer: Loop):
        self.trainer = trainer
        self._last_line = -math.inf

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        episodes = 0
        with tqdm(
            total=self.trainer.num_steps,
            initial=self.trainer.step,
            unit="step",
            dynamic_ncols=True,
            disable=None,  # without a terminal
        ) as bar:
            for record in records:
                bar.update(max(0, record["step"] - bar.n))  # some are of an earlier step
                kind, logs = record["type"], record["logs"]
                if bar.disable and kind == self.trainer.WORK_RECORDS[0]:
                    self._line(record)
                if kind in ("progress", "collect", "train"):
                    bar.set_description(f"epoch {record['epoch']}", refresh=False)
                    bar.set_postfix(_shown(logs), refresh=False)
                elif kind.endswith("episode"):
                    episodes += 1
                    num = self.trainer.config.experiment.rollout.n
                    bar.set_description(f"episode {episodes} of {num}")
                elif kind.endswith("rollout"):
                    episodes = 0
                    where = f" in {record['env']}" if "env" in record else ""
                    bar.write(f"epoch {record['epoch']}{where}: {success_line(logs)}")
                    if "Subgoals" in logs:
                        bar.write(subgoal_line(logs))
                elif kind == "proxy":
                    numbers = ", ".join(f"{name} {value:.3g}" for name, value in logs.items())
                    bar.write(f"epoch {record['epoch']}: proxies: {numbers}")
                yield record

    def _line(self, record: Record) -> None:
        epochs = self.trainer.config.train.to_dict().get("num_epochs")
        is_due = time.monotonic() - self._last_line > self.SECONDS_BETWEEN_LINES
        if is_due or record["epoch"] == epochs:
            self._last_line = time.monotonic()
            numbers = ", ".join(f"{name} {x}" for name, x in _shown(record["logs"]).items())
            of = f" of {epochs}" if epochs else ""
            print(f"epoch {record['epoch']}{of}" + (f": {numbers}" if numbers else ""))


def _shown(logs: Mapping[str, float]) -> dict[str, str]:
    """Format the loss and the return, if they are among the numbers."""
    found = {name.lower(): f"{value:.4g}" for name, value in logs.items()}
    return {name: found[name] for name in ("loss", "return") if name in found}


def success_line(logs: dict[str, float]) -> str:
    """Write a line about an evaluation: the success rate with its 95 % interval, if reported, and
    before it the return, if nothing succeeded."""
    crashed = f", {logs['Crashed']:.0f} not run" if logs.get("Crashed") else ""
    if "Return" not in logs:
        return f"no episode could be run{crashed}"
    totals = f"return {logs['Return']:.2f}, length {logs['Horizon']:.0f}"
    if "Success_Rate" not in logs:
        return f"{totals} (n = {logs.get('n', logs.get('Episodes')):.0f}{crashed})"
    rate = (
        f"success rate {logs['Success_Rate']:.2f} (95 % interval {logs['Success_Rate_Low']:.2f} to "
        f"{logs['Success_Rate_High']:.2f}, n = {logs['n']:.0f}{crashed})"
    )
    return f"{rate}, {totals}" if logs["Success_Rate"] else f"{totals}, {rate}"


def subgoal_line(logs: dict[str, float]) -> str:
    """Write a line about how often subgoals are reached."""
    return (
        f"subgoals reached {logs['Subgoals_Reached']:.2f} (within {100 * REACHED:g} cm, "
        f"n = {logs['Subgoals']:.0f}), "
        f"least distance {100 * logs['Subgoal_Distance']:.1f} cm on average"
    )
