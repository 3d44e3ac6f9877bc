"""The checkpoints of a run in a folder of the user's, named by the user's commit."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from offrl.checkpoint import write_checkpoint
from offrl.config import Config
from offrl.online.tagged import TaggedNames, has_changes, put_beside, sha8
from offrl.outputs import whole_file
from offrl.training.loop import Record, Training

log = logging.getLogger(__name__)


class TaggedFiles:
    """Puts into ``train.model_dest`` what ``models/`` of the run folder gets and the policy at the
    end of the training, which is ``agent-final-SHA8.pth``, too, and the config file that was given,
    byte for byte.

    The run folder remembers where they go and which commit they are named by, so that they do not
    change when a run is resumed elsewhere. It stands outside the checkpointer.

    config_file: the file that was given; ``None``: none, or that of an earlier process.
    """

    def __init__(self, trainer: Training, config_file: Path | None = None):
        self.trainer = trainer
        self.names = self._names(config_file)
        for given in trainer.run.path.glob("given-*"):
            own = given.with_name(given.name.removeprefix("given-"))
            put_beside(given, self.names.config(own), is_linked=False)
        if trainer.has_given({"type": "epoch", "epoch": trainer.epoch}):
            self._take()  # what an earlier process had no time for

    @staticmethod
    def check_place(config: Config, config_file: Path | None = None) -> None:
        """``FileExistsError`` where the files of another training are in the way."""
        _names_of(config).check_free(config_file)

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
                write_checkpoint(path, self.trainer.state(resumes=False))
            self.names.final.unlink(missing_ok=True)  # of a shorter training
            put_beside(path, self.names.final)

    def _names(self, config_file: Path | None) -> TaggedNames:
        remembered = self.trainer.run.path / "tagged.json"
        if not remembered.exists():
            names = _names_of(self.trainer.config)
            if has_changes():
                log.warning(
                    f"files here differ from those of {names.sha}, which names of files say"
                )
            log.info(f"checkpoints go to {names.folder} as well, with {names.sha} in their names")
            if config_file is not None:
                with whole_file(remembered.with_name(f"given-{config_file.name}")) as file:
                    file.write_bytes(config_file.read_bytes())
            content = {"folder": str(names.folder.absolute()), "commit": names.sha}
            with whole_file(remembered) as file:
                file.write_text(json.dumps(content) + "\n", encoding="utf-8")
        content = json.loads(remembered.read_text(encoding="utf-8"))
        return TaggedNames(content["folder"], content["commit"])


def _names_of(config: Config) -> TaggedNames:
    """The names that a training that begins here and now gives its files."""
    return TaggedNames(config.train.model_dest or ".", sha8())
