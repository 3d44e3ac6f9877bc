"""The code on the pages, as a reader runs it: block after block, in one folder.

What stands before a block, unseen by readers, says how it is run:

``<!-- file: NAME -->``       the block is a file of that name
``<!-- slow -->``             it takes minutes: ``make test-all`` alone runs it, and less of it
``<!-- not run: REASON -->``  it needs what no test has

Blocks without a language, and those of bash and Python, run; others are read by people alone.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "datasets/README.md"]
PAGES = [page for page in [*PAGES, *sorted((ROOT / "docs").rglob("*.md"))] if page.is_file()]
FENCE = re.compile(
    r"^(?P<note><!-- [^\n]* -->\n\n?)?```(?P<language>\w*|\{[^\n]*)\n(?P<code>.*?)^```", re.M | re.S
)
SHELL, PYTHON = ("", "bash"), "python"
# Replacements by which commands that take minutes, and the files that they read, do less.
LESS = {
    r"(offrl .*--n) \d\d+(?!.*--keep-failures)": r"\1 4",  # of a few all could have failed
    r"(offrl images .*--n) \d+": r"\1 2",
    r"(python compare\.py .*) \d\d": r"\1 4",
    r"train\.num_epochs: \d+": "train.num_epochs: 2",
    r'"num_epochs": \d\d+': '"num_epochs": 10',
    r"experiment\.rollout\.n: \d+": "experiment.rollout.n: 2\n  experiment.rollout.horizon: 60",
    r'"rollout": \{"n": \d+,': '"render_video": false, "rollout": {"n": 2,',
    r"train\.num_epochs=\d\d+": "train.num_epochs=2 --set experiment.epoch_every_n_steps=100 "
    "--set experiment.rollout.n=2",
    r"experiment\.rollout\.n=\d+": "experiment.rollout.n=2 --set experiment.rollout.horizon=60 "
    "--set experiment.render_video=false",
    r"--config (bc|online/cartpole_ppo)\.json --(name|seed) \w+(?=\s*(#|$))": r"\g<0> --debug",
}
SHIPPED = ("configs", "datasets", "examples", "benchmarks", "docs/migrating", "tests", "train.py")


@dataclass(frozen=True)
class Block:
    page: str  # below the clone
    line: int
    language: str
    code: str
    note: str

    @property
    def file(self) -> str:
        return self.note.partition("file: ")[2]

    @property
    def is_slow(self) -> bool:
        return self.note == "slow"

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run") and self.language in (*SHELL, PYTHON)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def script(self) -> str:
        """What bash runs for it."""
        if self.file:
            return _here_document(f"cat > {shlex.quote(self.file)}", _less(self.code))
        if self.language == PYTHON:
            return _here_document("python -", self.code)
        return _less(self.code) if self.is_slow else self.code


def _less(code: str) -> str:
    for much, less in LESS.items():
        code = re.sub(much, less, code, flags=re.M)
    return code


def _here_document(command: str, text: str) -> str:
    return f"{command} <<'END_OF_THE_BLOCK'\n{text}END_OF_THE_BLOCK\n"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start("code")),
            language=match["language"],
            code=match["code"],
            note=(match["note"] or "").strip()[5:-4],
        )
        for match in FENCE.finditer(text)
    ]


def run_blocks(blocks: list[Block], folder: Path) -> None:
    """Run blocks in ``folder``, where what the clone ships is at hand; ``AssertionError`` names the
    page, the line and the command that failed."""
    ships = subprocess.run(
        ["git", "ls-files", *SHIPPED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in ships.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    lines = ["set -euo pipefail"]
    lines += ["trap 'echo \"$BLOCK: this ended with status $?: $BASH_COMMAND\" >&2' ERR"]
    for block in blocks:
        if block.file or block.runs:
            lines += [f"BLOCK={block.place}", block.script()]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ.pop("OFFRL_MODULES", None)  # of tests
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
