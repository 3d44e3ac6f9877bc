"""Trains the cells of a study, several at a time, each in a process of its own."""

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from offrl.config import Config, config_from_content
from offrl.config.files import read_config_file
from offrl.data.provenance import fingerprint
from offrl.outputs import locked, writable_folder, write_text
from offrl.processes import ONE_THREAD, exit_status, program
from offrl.registry import shown
from offrl.reports.results import BEGUN, FINISHED
from offrl.reports.run import Run
from offrl.studies.cells import Cell
from offrl.studies.table import CONFIG, WHY, read_run, result_line, write_table
from offrl.training.launch import RemoteTraining
from offrl.tree import differences, merge

log = logging.getLogger(__name__)

POLL_S = 0.3
STOP_S = 60.0  # seconds for a training to save itself
ERROR = "offrl: error: "
# `offrl train` as a child that always ends with its parent.
PROGRAM = (
    "import sys; from offrl.processes import end_with; end_with(int(sys.argv.pop(1))); "
    "sys.path.append(sys.argv.pop(1)); from offrl.__main__ import main; sys.exit(main())"
)


class LocalTraining:
    """A cell's training in a process that ends with this one; its messages go to ``log.txt``.

    num_threads: the number of its threads.
    modules: the folder of a user's own modules.
    """

    def __init__(self, folder: Path, run: Path | None, num_threads: int, modules: Path):
        self._messages = open(folder / "log.txt", "a+", encoding="utf-8", errors="replace")
        self._begin = self._messages.seek(0, os.SEEK_END)
        what = ["--resume", str(run)] if run else ["--config", str(folder / CONFIG)]
        self._process = subprocess.Popen(
            [*program(PROGRAM), str(os.getpid()), str(modules.resolve()), "train", *what],
            env=os.environ | dict.fromkeys(ONE_THREAD, str(num_threads)),
            stdin=subprocess.DEVNULL,
            stdout=self._messages,
            stderr=self._messages,
            start_new_session=True,  # the parent handles terminal signals
        )

    def outcome(self) -> str | None:
        """Return the reason for a failure; empty on success, ``None`` while it runs."""
        code = self._process.poll()
        if not code:
            return None if code is None else ""
        self._messages.seek(self._begin)
        lines = self._messages.read().splitlines()
        errors = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
        if not errors:
            return f"{exit_status(code)}, see {self._messages.name}"
        return f"{errors[-1]} {lines[-1]}" if errors[-1].endswith(":") else errors[-1]

    def stop(self) -> None:
        """Ask it to save itself and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def close(self) -> None:
        """Wait until it has ended, and kill it if that takes too long."""
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        finally:
            self._messages.close()


Job = LocalTraining | RemoteTraining


@dataclass
class CellRunner:
    """Trains the cells of a study. A cell has a fixed run folder, where it is resumed."""

    output: Path  #: The folder of the study.
    num_jobs: int  #: The largest number of simultaneous trainings.
    #: Starts the training of a cell, by its folder and, to resume it, its run.
    start: Callable[[Path, Path | None], Job]
    command: str  #: The command that repeats the study.

    def run(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Train unfinished cells, and return the rows of ``study.csv``, which is kept up to date.

        Other cells go on if one fails; those that cannot begin are reported first. Raises
        ``ValueError``, before anything is written, if one was begun with other settings.
        """
        writable_folder(self.output)
        with locked(self.output, "another process is running a study there"):
            problems = {cell.name: self.problem(cell) for cell in cells}
            try:
                rows = write_table(self.output, cells, self.command)
                finished = {row["cell"] for row in rows if row["status"] == FINISHED}
                begun = sum(row["status"] == BEGUN for row in rows)
                log.info(
                    f"cells: {len(cells)}, of which {len(finished)} are finished and {begun} begun,"
                    f" {self.num_jobs} at a time, in {self.output}"
                )
                unable: dict[str, list[str]] = {}  # names of cells by their problems
                for cell in cells:
                    if why := problems[cell.name]:
                        unable.setdefault(self._note_failure(cell, why), []).append(cell.name)
                for why, names in unable.items():
                    more = f" and {len(names) - 1} more" if names[1:] else ""
                    log.info(f"{names[0]}{more}: failed: {why}")
                able = [cell for cell in cells if not problems[cell.name]]

                def ended(cell: Cell, why: str) -> None:
                    if cell.name in finished:
                        return
                    says = f"failed: {why}" if why else result_line(cell, self.output)
                    log.info(f"{cell.name}: {says}")
                    with suppress(OSError):  # on a full disk, cells fail as well
                        write_table(self.output, cells, self.command)

                self.run_each(iter(able), len(able), ended)
            finally:
                rows = write_table(self.output, cells, self.command)
        return rows

    def run_each(
        self,
        cells: Iterator[Cell],
        total: int,
        ended: Callable[[Cell, str], None],
        watch: Callable[[Cell, Job], None] = lambda cell, job: None,
    ) -> None:
        """Train cells from an iterator.

        ended: called for each ended cell, with the reason of a failure or ``""``.
        watch: called regularly for each running cell.
        """
        running: dict[str, tuple[Cell, Job]] = {}
        num_done = 0
        form = "{percentage:3.0f}%|{bar:20}| {n:.1f} of {total} [{elapsed}<{remaining}{postfix}]"
        with tqdm(total=total, disable=None, bar_format=form) as bar:
            try:
                while True:
                    while len(running) < self.num_jobs and (cell := next(cells, None)):
                        job_or_why = self._begin(cell)
                        if isinstance(job_or_why, str):
                            num_done += 1
                            ended(cell, self._note_failure(cell, job_or_why))
                        else:
                            running[cell.name] = cell, job_or_why
                    shares = {name: self._share_done(name) for name in running}
                    bar.set_postfix_str(", ".join(f"{n} {x:.0%}" for n, x in shares.items()))
                    bar.update(num_done + sum(shares.values()) - bar.n)
                    if not running:
                        return
                    time.sleep(POLL_S)
                    for cell, job in [*running.values()]:
                        if (why := job.outcome()) is None:
                            watch(cell, job)
                        else:
                            running.pop(cell.name)[1].close()
                            num_done += 1
                            ended(cell, self._note_failure(cell, why))
            except KeyboardInterrupt:
                log.info("stopped; the same command goes on with what ran")
                raise
            finally:
                for _, job in running.values():
                    job.stop()
                for _, job in running.values():
                    job.close()

    def problem(self, cell: Cell) -> str:
        """Return why a cell cannot be trained; ``ValueError`` if begun with other settings."""
        folder = self.output / cell.name
        run = read_run(folder)
        if run is None or cell.problem:  # ``cell.problem`` does not matter for a finished run
            return "" if run and run.is_finished else problem_of(cell)
        try:
            changed = _changed(cell, folder / CONFIG, run)
        except (ValueError, OSError) as error:
            changed = str(error)
            if not run.is_finished:
                return changed
        if changed:
            raise ValueError(
                f"{run.path} was trained with other settings: {changed}; put them back, or name "
                "another output in the study"
            )
        return ""

    def _begin(self, cell: Cell) -> Job | str:
        """Start a cell, or return why that is impossible; empty if it is finished."""
        folder = self.output / cell.name
        if why := self.problem(cell):
            return why
        try:
            run = read_run(folder)
            (folder / WHY).unlink(missing_ok=True)
            if run and run.is_finished:
                return ""
            if run is None:
                _write(folder / CONFIG, json.dumps(cell.content, indent=4))
            return self.start(folder, run.path if run else None)
        except (ValueError, OSError) as error:
            return str(error)

    def _note_failure(self, cell: Cell, why: str) -> str:
        """Write and return the reason why a cell failed; none if its tests are done."""
        folder = self.output / cell.name
        run = read_run(folder)
        if run and run.is_finished:
            return ""
        if run and run.provenance.get("finished"):
            lost = f"{run.path / 'metrics.jsonl'} lacks its end"
            why = why or f"{lost}; move {folder} away to train it anew"
        why = why or "it ended before its end"
        with suppress(OSError):
            _write(folder / WHY, why)
        return why

    def _share_done(self, name: str) -> float:
        run = read_run(self.output / name, last=True)
        done, wanted = run.done_of if run else (0, 1)
        return min(1.0, done / wanted)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f"{text}\n")


def problem_of(cell: Cell) -> str:
    """Return why the content of a cell is no valid config; empty if it is one."""
    if not cell.problem:
        try:
            config_from_content(cell.content)
        except (ValueError, OSError) as error:
            return str(error)
    return cell.problem


def _changed(cell: Cell, begun_with: Path, run: Run) -> str:
    """Return the changes of a cell's config or data since it was begun."""
    config = config_from_content(cell.content)
    paths = [entry.path for entry in config.train.data or []]
    known = run.provenance.get("dataset_fingerprint")
    if known and all(map(os.path.exists, paths)) and fingerprint(paths) != known:
        return f"train.data ({', '.join(map(str, paths))}: other data than then)"
    if not begun_with.is_file():
        return ""
    begun = config_from_content(read_config_file(begun_with))
    changed = differences(_comparable(begun), _comparable(config))
    return ", ".join(f"{k} ({shown(now)}, was {shown(was)})" for k, (was, now) in changed.items())


def _comparable(config: Config) -> dict[str, Any]:
    """Return the content of a config without the paths of data and runs."""
    content = config.to_dict()
    del content["train"]["output_dir"], content["meta"]
    files = enumerate(content["train"]["data"] or [])
    data = {str(i): {**entry, "path": Path(entry["path"]).name} for i, entry in files}
    return merge(content, {"train": {"data": data}})
