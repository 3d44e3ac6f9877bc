"""Files that carry the commit of the user's own repository in their names."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from offrl.outputs import in_words, whole_file, writable_folder

NO_COMMIT = "nogit"


def commit_here() -> str:
    """Eight characters of the commit of the repository that the working directory is in, ``nogit``
    where there is none."""
    return _git("rev-parse", "--verify", "HEAD")[:8] or NO_COMMIT


def sha8(given: str | None) -> str:
    """Eight characters of the commit that is given; ``None``: of the repository here."""
    if given is None:
        return commit_here()
    if not re.fullmatch(r"[\w.-]+", given):
        raise ValueError(f"gitsha: {given!r} cannot stand in the names of files; give a commit")
    return given[:8]


def has_changes() -> bool:
    """Whether files of that repository differ from those of the commit."""
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


def _git(*arguments: str) -> str:
    """git's answer about the working directory; nothing where it has none."""
    unlocked = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # look, and write nothing
    command, options = ["git", *arguments], {"env": unlocked, "timeout": 10, "check": True}
    try:
        return subprocess.run(command, capture_output=True, text=True, **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


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
    with in_words(path):
        try:
            if is_linked:
                os.link(source, path)
                return
        except FileExistsError:
            return
        except OSError:  # another file system, or one without links
            pass
    with whole_file(path) as partial:
        shutil.copyfile(source, partial)
