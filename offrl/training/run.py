"""The folder of a run, and where its results come from."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import offrl
from offrl.config import PROJECT_ROOT, Config, config_factory, read_config_file


class RunFolder:
    """``OUTPUT/NAME/TIMESTAMP`` and the names of what lies in it.

    Artefact names carry the first eight characters of the git commit.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.sha = git_commit().removesuffix("-dirty")
        self.last_checkpoint = self.path / "last.pth"
        self.models = self.path / "models"
        self.logs = self.path / "logs"
        self.videos = self.path / "videos"

    @classmethod
    def create(cls, config: Config) -> RunFolder:
        """A new folder with the config in it. Nothing that exists is touched."""
        parent = Path(config.train.output_dir).expanduser() / config.experiment.name
        stamp = time.strftime("%Y%m%d%H%M%S")
        suffix = 0
        while True:
            run = cls(parent / (f"{stamp}-{suffix}" if suffix else stamp))
            try:
                run.path.mkdir(parents=True)
                break
            except FileExistsError:
                if not run.path.is_dir():
                    raise FileExistsError(_cannot_write(parent, "a file is in the way")) from None
                suffix += 1
            except OSError as error:
                raise OSError(_cannot_write(parent, error.strerror)) from None
        for folder in (run.models, run.logs, run.videos):
            folder.mkdir()
        run.config_file.write_text(config.dump() + "\n", encoding="utf-8")
        return run

    @classmethod
    def open(cls, path: str | Path) -> tuple[RunFolder, Config]:
        """The folder of an earlier run and its config."""
        configs = sorted(Path(path).glob("config-*.json"))
        if not configs:
            raise FileNotFoundError(
                f"{path}: not a run folder (no config-*.json); give OUTPUT/NAME/TIMESTAMP"
            )
        for unfinished in Path(path).rglob(".*.partial*"):  # a killed process was writing these
            unfinished.unlink()
        content = read_config_file(configs[0])
        return cls(path), config_factory(content["algo_name"], content)

    @property
    def config_file(self) -> Path:
        return self.path / f"config-{self.sha}.json"

    def checkpoint(self, epoch: int) -> Path:
        return self.models / f"model_epoch_{epoch}-{self.sha}.pth"

    def video(self, name: str) -> Path:
        return self.videos / f"{name}-{self.sha}.mp4"


def _cannot_write(path: Path, why: str | None) -> str:
    return f"{path}: cannot write the run folder there ({why}); choose another with --output"


def git_commit() -> str:
    """Eight characters of the commit, ``-dirty`` if files differ from it; else ``nogit``."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "nogit"
    if answer.returncode != 0:
        return "nogit"
    commit, dash, dirty = answer.stdout.strip().partition("-")
    return commit[:8] + dash + dirty


def provenance() -> dict[str, Any]:
    """Commit, versions and platform."""
    versions = {}
    for package in ("torch", "numpy", "h5py", "robosuite", "mujoco", "gymnasium"):
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
