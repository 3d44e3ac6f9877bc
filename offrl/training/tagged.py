"""The checkpoints of a training in a folder of the user's, named by the user's commit."""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from offrl.outputs import whole_file, writable_folder
from offrl.training.loop import Record, Training
from offrl.training.run import git

log = logging.getLogger(__name__)


def sha8(commit: str | None = None) -> str:
    """Give the first eight characters of a commit; ``None``: of that of the repository that the
    working directory is in, or ``nogit`` where there is none."""
    commit = (git("rev-parse", "--verify", "HEAD") or "nogit") if commit is None else commit
    if not re.fullmatch(r"[\w.-]+", commit):
        raise ValueError(f"gitsha: {commit!r} cannot stand in the names of files; give a commit")
    return commit[:8]


class TaggedNames:
    """The names of a training's files in ``train.model_dest``. See ``sha8`` for the ``commit``."""

    def __init__(self, folder: str | Path, commit: str | None = None):
        self.folder, self.sha = Path(folder).expanduser().absolute(), sha8(commit)
        self.final = self.folder / f"agent-final-{self.sha}.pth"

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"agent-{step:09d}-{self.sha}.pth"

    def config(self, given: Path) -> Path:
        return self.folder / f"{given.stem}-{self.sha}{given.suffix}"

    def check_free(self, given: Path | None = None) -> None:
        """Make the folder if need be. Raises ``FileExistsError`` if another training has left files
        by the same commit there, and ``OSError`` where none can be written."""
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


class TaggedFiles:
    """Copies what ``models/`` of the run folder gets into ``train.model_dest``, and puts there the
    last policy, also as ``agent-final-SHA8.pth``, and the given config file, byte for byte.

    It stands outside the checkpointer. The run folder remembers the place and the commit, so that
    they stay the same when a run is resumed elsewhere.

    config_file: The file that was given; ``None``: none, or that of an earlier process.
    """

    def __init__(self, trainer: Training, config_file: Path | None = None):
        self.trainer = trainer
        self.names = self._names(config_file)
        for given in trainer.run.path.glob("given-*"):
            own = given.with_name(given.name.removeprefix("given-"))
            put_beside(given, self.names.config(own), is_linked=False)
        if trainer.has_given({"type": "epoch", "epoch": trainer.epoch}):
            self._take()  # what an earlier process had no time for

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record["type"] == "epoch":
                self._take()
            yield record

    def _take(self) -> None:
        path = self.names.checkpoint(self.trainer.step)
        for kept in self.trainer.run.models.glob(f"model_epoch_{self.trainer.epoch}-*.pth"):
            put_beside(kept, path)
        if self.trainer.is_last:
            if not path.exists():
                self.trainer.save(path)
            self.names.final.unlink(missing_ok=True)  # of a shorter training
            put_beside(path, self.names.final)

    def _names(self, config_file: Path | None) -> TaggedNames:
        remembered = self.trainer.run.path / "tagged.json"
        if remembered.exists():
            return TaggedNames(**json.loads(remembered.read_text(encoding="utf-8")))
        names = TaggedNames(self.trainer.config.train.model_dest or ".")
        if git("status", "--porcelain", "--untracked-files=no"):
            log.warning(f"files here differ from those of {names.sha}, which names of files say")
        log.info(f"checkpoints go to {names.folder} as well, with {names.sha} in their names")
        if config_file is not None:
            with whole_file(remembered.with_name(f"given-{config_file.name}")) as file:
                file.write_bytes(config_file.read_bytes())
        content = {"folder": str(names.folder), "commit": names.sha}
        with whole_file(remembered) as file:
            file.write_text(json.dumps(content) + "\n", encoding="utf-8")
        return names


def put_beside(source: Path, path: Path, is_linked: bool = True) -> None:
    """Let a file be found at ``path`` as well, unless something is there already, which stays.

    is_linked: As the same file, which takes no space, where the file system can; else as a copy.
    """
    if os.path.lexists(path):
        return
    with suppress(OSError):  # of another file system, or one without links
        if is_linked:
            return os.link(source, path)
    with whole_file(path) as partial:
        shutil.copyfile(source, partial)
