"""The folder of a run, and where its results come from."""

import fcntl
import itertools
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import offrl
from offrl.config import Config, config_factory
from offrl.config.files import PROJECT_ROOT, read_config_file


class RunFolder:
    """``OUTPUT/NAME/TIMESTAMP`` and the names of what lies in it.

    Artefact names carry the first eight characters of the git commit.
    """

    _folder: int | None = None  # open while it is locked

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.sha = git_commit().removesuffix("-dirty")
        self.config_file = self.path / f"config-{self.sha}.json"
        self.last_checkpoint = self.path / "last.pth"
        self.previous_checkpoint = self.path / "previous.pth"
        self.metrics = self.path / "metrics.jsonl"
        self.models = self.path / "models"
        self.logs = self.path / "logs"
        self.log_text = self.logs / "log.txt"
        self.videos = self.path / "videos"

    @classmethod
    def create(
        cls, config: Config, fill: Callable[["RunFolder"], None] | None = None
    ) -> "RunFolder":
        """A new folder with the config in it and what ``fill`` writes there: it appears complete,
        and nothing else is touched."""
        parent = Path(config.train.output_dir).expanduser() / config.experiment.name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            unfinished = cls(tempfile.mkdtemp(dir=parent, prefix=".", suffix=".partial"))
            unfinished.path.chmod(0o755)  # mkdtemp's folders are private
            for folder in (unfinished.models, unfinished.logs, unfinished.videos):
                folder.mkdir()
            unfinished.config_file.write_text(config.dump() + "\n", encoding="utf-8")
            if fill is not None:
                fill(unfinished)
        except OSError as error:
            raise OSError(
                f"{parent}: cannot write the run folder there ({error.strerror}); choose another "
                "with --output"
            ) from None
        stamp = time.strftime("%Y%m%d%H%M%S")
        for suffix in itertools.count():
            path = parent / (f"{stamp}-{suffix}" if suffix else stamp)
            try:
                run = cls(unfinished.path.rename(path))  # fails where a run is already
                break
            except OSError:
                if not path.exists():
                    raise
        run._lock()
        return run

    @classmethod
    def open(cls, path: str | Path) -> tuple["RunFolder", Config]:
        """The folder of an earlier run and its config."""
        configs = sorted(Path(path).glob("config-*.json"))
        if not configs:
            raise FileNotFoundError(
                f"{path}: not a run folder (no config-*.json); give OUTPUT/NAME/TIMESTAMP"
            )
        run = cls(path)
        run._lock()
        for unfinished in run.path.rglob(".*.partial*"):  # a killed process was writing these
            unfinished.unlink()
        content = read_config_file(configs[0])
        return run, config_factory(content["algo_name"], content)

    def _lock(self) -> None:
        """One process at a time; the lock ends with the process."""
        self._folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.path}: another process is training in this folder") from None

    def unlock(self) -> None:
        """Let others train in the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    __del__ = unlock

    @property
    def log_size(self) -> int:
        return self.log_text.stat().st_size if self.log_text.exists() else 0

    def checkpoint(self, epoch: int) -> Path:
        return self.models / f"model_epoch_{epoch}-{self.sha}.pth"

    def video(self, name: str) -> Path:
        return self.videos / f"{name}-{self.sha}.mp4"


def git_commit() -> str:
    """Eight characters of the commit, ``-dirty`` if files differ from it; else ``nogit``."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "nogit"
    commit, dash, dirty = answer.stdout.strip().partition("-")
    return commit[:8] + dash + dirty


def provenance() -> dict[str, Any]:
    """Commit, versions and platform."""
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
