"""The folder of a run, the checkpoint that it resumes from, and its provenance."""

import logging
import os
import platform
import shutil
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import offrl
from offrl.checkpoint import read_checkpoint
from offrl.config import Config
from offrl.config.files import read_config_file
from offrl.config.pipeline import PipelineConfig, config_of
from offrl.data.provenance import fingerprint
from offrl.data.sequence import SequenceDataset
from offrl.modules import named
from offrl.outputs import (
    check_place,
    explained_errors,
    take_lock,
    whole_file,
    writable_folder,
    write_text,
)
from offrl.registry import shown
from offrl.reports.records import read_records
from offrl.reports.run import kept_checkpoints, length_of, newest_run
from offrl.tree import differences

log = logging.getLogger(__name__)

AnyConfig = Config | PipelineConfig

# Parts of checkpoints that only resuming needs.
NEEDED_TO_RESUME = (
    "variable_state.epoch variable_state.step model.nets model.optimizers rng.torch "
    "loader.position|online.step provenance"
).split()

PROJECT_ROOT = Path(offrl.__file__).parents[1]  # the clone, or the folder of installed packages


class RunFolder:
    """The folder of a run, ``OUTPUT/NAME/TIMESTAMP``, and the names of its files. Names of
    artefacts contain the first eight characters of the git commit, or the version."""

    _folder: int | None = None  # descriptor while it is locked

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.sha = git_commit().removesuffix("-dirty")
        self.config_file = self.path / f"config-{self.sha}.json"
        self.last_checkpoint = self.path / "last.pth"
        self.previous_checkpoint = self.path / "previous.pth"
        self.evaluated = self.path / "evaluated.pth"  # a copy that is evaluated in the background
        self.metrics = self.path / "metrics.jsonl"
        self.models = self.path / "models"
        self.logs = self.path / "logs"
        self.log_text = self.logs / "log.txt"
        self.videos = self.path / "videos"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_folder": None}  # the lock stays where it is

    @classmethod
    def create(
        cls, config: AnyConfig, fill: Callable[["RunFolder"], None] | None = None
    ) -> "RunFolder":
        """Make a new folder with the config and files of ``fill``. It appears complete."""
        with _place_of_runs(config) as parent:
            parent.mkdir(parents=True, exist_ok=True)
            partial = cls(parent / f".{time.time_ns()}.{os.getpid()}.partial")
            try:
                for folder in (partial.path, partial.models, partial.logs, partial.videos):
                    folder.mkdir()
                partial.write_config(config)
                if fill is not None:
                    fill(partial)
                run = cls(_named_by_time(partial.path))
            finally:
                shutil.rmtree(partial.path, ignore_errors=True)  # unless it was renamed
        run._lock()
        return run

    @staticmethod
    def check_place(config: AnyConfig) -> None:
        """Raise ``OSError`` if ``create`` could not write."""
        with _place_of_runs(config) as parent:
            check_place(parent)

    def write_config(self, config: AnyConfig, is_finished: bool | None = None) -> None:
        """Write the config that the run has from now on, and in its provenance a mark that tells
        ``reports.run.Run`` whether the training has come to its end."""
        config = config.model_copy(deep=True)
        if is_finished is not None:
            config.meta.provenance["finished"] = is_finished * length_of(config.to_dict())
        write_text(self.config_file, config.dump() + "\n")

    @classmethod
    def open(cls, path: str | Path) -> tuple["RunFolder", Any]:
        """Open the folder of an earlier run, read its config, and remove half-written files."""
        path = Path(path).expanduser().absolute()
        configs = sorted(path.glob("config-*.json"))
        if not configs:
            newest = newest_run(path)
            give = f"the newest run in it is {newest}" if newest else "give OUTPUT/NAME/TIMESTAMP"
            raise FileNotFoundError(f"{path}: not a run folder (no config-*.json); {give}")
        run = cls(path)
        run.config_file = configs[0]
        run._lock()
        with explained_errors(path):
            for unfinished in path.rglob(".*.partial*"):
                unfinished.unlink()
            for folder in (run.models, run.logs, run.videos):
                folder.mkdir(exist_ok=True)
        writable_folder(path)
        try:
            return run, config_of(read_config_file(configs[0]))
        except ValueError as error:
            what = str(error).removeprefix(f"{configs[0]}: ")
            raise ValueError(
                f"{configs[0]}: {what}; put it back as it was (last.pth holds it, too: config)"
            ) from None

    def _lock(self) -> None:
        """Lock out other processes. The lock ends with this process, as forked ones release it."""
        own = weakref.ref(self)

        def let_go() -> None:
            if run := own():
                run.unlock()

        os.register_at_fork(after_in_child=let_go)
        self._folder = os.open(self.path, os.O_RDONLY)
        take_lock(self._folder, self.path, "another process is training in this folder")

    def unlock(self) -> None:
        """Allow other processes to train in the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    __del__ = unlock

    @property
    def log_size(self) -> int:
        return self.log_text.stat().st_size if self.log_text.exists() else 0

    def checkpoint(self, epoch: int) -> Path:
        """Return the path of the kept checkpoint of an epoch."""
        return self.models / f"model_epoch_{epoch}-{self.sha}.pth"

    def video(self, name: str) -> Path:
        """Return the path of a video."""
        return self.videos / f"{name}-{self.sha}.mp4"


@contextmanager
def _place_of_runs(config: AnyConfig) -> Iterator[Path]:
    # Absolute, as an environment may change the working folder.
    parent = Path(config.train.output_dir).expanduser().absolute() / config.experiment.name
    try:
        with explained_errors(parent):
            yield parent
    except OSError as error:
        why = str(error).removeprefix(f"{parent}: ")
        raise OSError(
            f"{parent}: cannot write the run folder there: {why}; --output names another place"
        ) from None


def newest_checkpoint(run: RunFolder) -> tuple[Path, dict[str, Any]]:
    """Read ``last.pth``, or with a warning ``previous.pth`` or the newest undamaged one in
    ``models/``. A damaged ``last.pth`` is kept as ``last-damaged.pth``. Returns path and content.

    Raises ``ValueError`` if there is none: a run never restarts by itself.
    """
    problems: list[str] = []
    kept = kept_checkpoints(run.path)
    for path in (run.last_checkpoint, run.previous_checkpoint, *kept):
        try:
            state = read_checkpoint(path)
            check_parts(state, path)
        except (ValueError, FileNotFoundError) as error:
            problems.append(str(error).partition("; ")[0])  # without its advice
            continue
        if path != run.last_checkpoint:
            if run.last_checkpoint.exists():
                run.last_checkpoint.replace(run.path / "last-damaged.pth")
            with whole_file(run.last_checkpoint) as file:
                shutil.copyfile(path, file)
            step = state["variable_state"]["step"]
            reached = max((record["step"] for record in read_records(run.metrics)[0]), default=step)
            nothing = "as far as the log says, nothing is repeated"
            repeated = f"steps {step + 1} to {reached} are repeated" if reached > step else nothing
            log.warning(
                f"going on from {path.relative_to(run.path)}, step {step}: {repeated} "
                f"({'; '.join(problems)})"
            )
        return path, state
    raise ValueError(
        f"{run.path}: no checkpoint to go on from ({'; '.join(problems)}); train it anew: "
        f"offrl train --config {run.config_file}"
    )


def check_parts(state: Mapping[str, Any], where: object) -> None:
    """Raise ``ValueError`` that names the parts that a checkpoint lacks for resuming."""

    def has(part: str) -> bool:
        found: Any = state
        for name in part.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found is not None

    lacking = [part for part in NEEDED_TO_RESUME if not any(map(has, part.split("|")))]
    if lacking:
        raise ValueError(
            f"{where}: lacks {', '.join(lacking)}, so that no training goes on from it; it serves "
            "as a policy, and a new run can start from its weights (experiment.ckpt_path)"
        )


def _named_by_time(folder: Path) -> Path:
    """Rename a folder to the present time, and return its new path."""
    stamp, number = time.strftime("%Y%m%d%H%M%S"), 0
    while True:
        path = folder.with_name(f"{stamp}-{number}" if number else stamp)
        try:
            return folder.rename(path)  # fails if a run is there already
        except OSError:
            if not path.exists():
                raise
        number += 1


def git(*arguments: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Run git in the working directory, or as ``environ`` says. ``None``: it fails."""
    unlocked = {**environ, "GIT_OPTIONAL_LOCKS": "0"}  # git writes nothing
    command = ["git", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, env=unlocked, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def git_commit() -> str:
    """Return eight characters of the commit of offrl's own clone, with ``-dirty`` if files differ
    from it; ``nogit`` if git fails. If offrl is no clone, return its version."""
    if not (PROJECT_ROOT / ".git").exists():
        return f"v{offrl.__version__}"
    # For this project only: ignore repositories around it or in the environment, and owners.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_DIR": str(PROJECT_ROOT / ".git"), "GIT_WORK_TREE": str(PROJECT_ROOT)}
    ask = partial(git, "-C", str(PROJECT_ROOT), environ=environ)
    tracked = ask("ls-files", "offrl/__init__.py")
    if tracked == "":  # a repository around site-packages
        return f"v{offrl.__version__}"
    commit, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain", "--untracked-files=no")
    if tracked is None or commit is None or changes is None:
        return "nogit"
    return f"{commit[:8]}-dirty" if changes else commit[:8]


def note_provenance(
    config: AnyConfig, dataset: SequenceDataset | None, run: RunFolder | None
) -> None:
    """Write the provenance of a training into its config: the code, the data and the seed. Raises
    ``ValueError`` if the data is not that of an earlier ``run``."""
    meta, data = config.meta, {}
    if dataset is not None:
        found = fingerprint(source.path for source in dataset.sources)
        if run is not None and meta.provenance.get("dataset_fingerprint", found) != found:
            raise ValueError(
                f"{run.path}: {dataset.hdf5_path} is not the data that this run was trained on; "
                "put it back, or start a new run from the weights (experiment.ckpt_path)"
            )
        data = {"dataset_fingerprint": found}
    meta.provenance = {
        **provenance(),
        **data,
        "seed": config.train.seed,
        "num_threads": torch.get_num_threads(),
        "modules": named(),  # a resumed run may use them again
    }


def note_changes(config: AnyConfig, was: Mapping[str, Any], step: int) -> None:
    """Add the changes of a config since it ``was``, made at ``step``, to its provenance."""
    then = config_of(was)
    found = differences(then.to_dict() | {"meta": {}}, config.to_dict() | {"meta": {}})
    changes = [*then.meta.provenance.get("changes", [])]
    if found:
        keys = {key: {"was": old, "now": new} for key, (old, new) in found.items()}
        changes.append({"time": time.strftime("%Y-%m-%d %H:%M:%S"), "step": step, "keys": keys})
        words = ", ".join(f"{key} ({shown(n)}, was {shown(o)})" for key, (o, n) in found.items())
        log.warning(f"the config is not the one that the run was trained with: {words}")
    if changes:
        config.meta.provenance["changes"] = changes


def provenance() -> dict[str, Any]:
    """Collect the commit, the versions of packages and the platform."""
    versions = {}
    for package in ("torch", "numpy", "h5py", "robosuite", "mujoco", "gymnasium", "metaworld"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    return {
        "git_commit": git_commit(),
        "offrl": offrl.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
    }
