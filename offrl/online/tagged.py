"""Files that carry the commit of the user's own repository in their names."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from offrl.outputs import whole_file, writable_folder


def sha8(given: str | None = None) -> str:
    """Give eight characters of the commit that is given; ``None``: of that of the repository which
    the working directory is in, ``nogit`` where there is none."""
    given = (git("rev-parse", "--verify", "HEAD") or "nogit") if given is None else given
    if not re.fullmatch(r"[\w.-]+", given):
        raise ValueError(f"gitsha: {given!r} cannot stand in the names of files; give a commit")
    return given[:8]


def has_changes() -> bool:
    """Say whether files of that repository differ from those of the commit."""
    return bool(git("status", "--porcelain", "--untracked-files=no"))


def git(*arguments: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Ask git about the working directory, or what ``environ`` names. ``None``: no answer."""
    unlocked = {**environ, "GIT_OPTIONAL_LOCKS": "0"}  # look, and write nothing
    command, options = ["git", *arguments], {"env": unlocked, "timeout": 10, "check": True}
    try:
        return subprocess.run(command, capture_output=True, text=True, **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


class TaggedNames:
    """The names of the files of one training in ``train.model_dest``.

    sha: eight characters of a commit, or whatever is to stand in its place.
    """

    def __init__(self, folder: str | Path, sha: str):
        self.folder, self.sha = Path(folder).expanduser().absolute(), sha
        self.final = self.folder / f"agent-final-{sha}.pth"

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"agent-{step:09d}-{self.sha}.pth"

    def config(self, given: Path) -> Path:
        return self.folder / f"{given.stem}-{self.sha}{given.suffix}"

    def check_free(self, given: Path | None = None) -> None:
        """Make the folder if need be. ``FileExistsError`` if another training has left its files
        there, by the same commit; ``OSError`` where none can be written."""
        writable_folder(self.folder)
        taken = sorted(self.folder.glob(f"agent-*-{self.sha}.pth"))
        if given is not None:
            config = self.config(given)
            if config.exists() and config.read_bytes() != given.read_bytes():
                taken.append(config)
        if taken:
            raise FileExistsError(
                f"{taken[0]} exists; move it away, or name another folder (train.model_dest)"
            )


def put_beside(source: Path, path: Path, is_linked: bool = True) -> None:
    """Let a file be found at ``path`` as well, unless something is there already, which stays.

    is_linked: as the same file, where the file system can, which takes no space; else as a copy.
    """
    if os.path.lexists(path):
        return
    with suppress(OSError):  # of another file system, or one without links
        if is_linked:
            return os.link(source, path)
    with whole_file(path) as partial:
        shutil.copyfile(source, partial)
