"""The commands and scripts that the pages show run as shown."""

import importlib
import pkgutil
import re
import shlex
import sys

import programs
import pytest
from pages import PAGES, ROOT, SHELL, Block, blocks_of, run_blocks

from offrl import tools
from offrl.__main__ import main

BLOCKS = {page: blocks_of(page) for page in PAGES}
LANGUAGES = ("", "bash", "python", "text", "json", "yaml")  # of which the first three are run
RUN = [page for page, blocks in BLOCKS.items() if any(b.runs for b in blocks)]
# Whose quick commands CI runs: of a command, a script and the functions. All pages take minutes.
FIRST = [ROOT / "docs/tutorial.md", ROOT / "docs/reference/api/data.md"]


def named(page):
    return str(page.relative_to(ROOT))


def commands():
    """The commands of offrl, of blocks that no test runs too."""
    for block in (block for blocks in BLOCKS.values() for block in blocks):
        if block.language not in SHELL or block.note.startswith("not run: a sketch"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            if re.match(r"offrl |python train.py ", line):
                words = shlex.split(line, comments=True)
                words = words[1:] if words[0] == "offrl" else ["train", *words[2:]]
                ends = [i for i, word in enumerate(words) if word in ("|", "||", "&&", ";", ">")]
                yield block.place, words[: ends[0]] if ends else words


OURS = list(commands())


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST, ids=named)
def test_the_quick_commands_of_a_page_run(page, tmp_path):
    run_blocks([block for block in BLOCKS[page] if not block.is_slow], tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", RUN, ids=named)
def test_all_commands_of_a_page_run(page, tmp_path):
    run_blocks(BLOCKS[page], tmp_path)


def test_a_command_that_no_longer_runs_is_named(tmp_path):
    good = Block("docs/page.md", 3, "bash", "true\n", "")
    bad = Block("docs/page.md", 7, "bash", "true\noffrl nothing --such\necho after\n", "")
    run_blocks([good], tmp_path / "good")
    with pytest.raises(AssertionError, match="docs/page.md:7: .* status 2: offrl nothing --such"):
        run_blocks([good, bad], tmp_path / "bad")


def test_what_is_not_run_has_a_reason():
    for block in (block for blocks in BLOCKS.values() for block in blocks):
        is_directive = block.language.startswith("{")
        assert is_directive or block.language in LANGUAGES, block.place
        kind = block.note.partition(":")[0]
        assert kind in ("", "slow", "file") or re.match(r"not run: \w+", block.note), block.place


@pytest.mark.parametrize("page", BLOCKS, ids=named)
def test_the_files_that_a_page_names_are_there(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [x for x in links if "://" not in x and not (page.parent / x).exists()]
    assert not missing, f"{named(page)} links to what is not there: {missing}"


@pytest.mark.parametrize(("page", "words"), OURS, ids=lambda x: x if isinstance(x, str) else None)
def test_a_command_and_its_options_exist(page, words, monkeypatch):
    ran = []
    for module in pkgutil.iter_modules(tools.__path__):
        command = importlib.import_module(f"offrl.tools.{module.name}")
        monkeypatch.setattr(command, "run", lambda args: ran.append(args) or 0)
    monkeypatch.setattr("offrl.__main__.import_all", lambda *_: None)  # which pages make
    assert main(words) == 0 and len(ran) == 1


def test_there_are_commands_on_the_pages():
    assert len(OURS) > 20 and len(RUN) > 10


@pytest.mark.thorough
@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.json")), ids=lambda p: p.stem)
def test_every_config_trains_evaluates_and_tests(config, tmp_path):
    if "image" in config.stem:
        pytest.skip("its images are rendered first (datasets/README.md)")
    if config.stem == "finetune":
        pytest.skip("it goes on from a checkpoint; tests/online/test_start.py has one")
    command = [sys.executable, "train.py", "--config", config.name, "--debug"]
    epochs = 2 if config.stem == "vq_bet" else 1  # codes, and then a policy
    less = (f"train.num_epochs={epochs}", "experiment.rollout.num_workers=1")
    for setting in ("experiment.render_video=false", *less):
        command += ["--set", setting]
    done = programs.run(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    result = "not measured" if config.stem == "gl" else "success rate"  # which takes no actions
    assert done.returncode == 0 and result in done.stdout, done.stderr
