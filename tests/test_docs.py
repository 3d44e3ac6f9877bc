"""The commands and scripts that the pages show are ones that work."""

import ast
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

from offrl import tools
from offrl.__main__ import main

PAGES = [ROOT / "README.md", ROOT / "datasets/README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, language, block)
    for page in PAGES
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)
]


def commands():
    for page, language, block in BLOCKS:
        if language in ("", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                if not re.match(r"(offrl|\S*python) ", line):
                    continue
                words = shlex.split(line, comments=True)
                if words[:1] == ["offrl"]:
                    yield page, words[1:]
                elif len(words) > 1 and re.search(r"(^|/)python$", words[0]):
                    is_training = words[1] == "train.py"
                    yield page, ["train", *words[2:]] if is_training else words


COMMANDS = list(commands())
OURS = [c for c in COMMANDS if not c[1][0].endswith("python")]
SCRIPTS = sorted({words[1] for _, words in COMMANDS if words[0].endswith("python")} - {"-m"})
PYTHON = [
    (page, block)
    for page, language, block in BLOCKS
    if language == "python" and page != "architecture.md"  # whose are sketches
]


@pytest.mark.parametrize(("page", "words"), OURS, ids=lambda x: x if isinstance(x, str) else None)
def test_a_command_and_its_options_exist(page, words, monkeypatch):
    ran = []
    for module in pkgutil.iter_modules(tools.__path__):
        command = importlib.import_module(f"offrl.tools.{module.name}")
        monkeypatch.setattr(command, "run", lambda args: ran.append(args) or 0)
    assert main(words) == 0 and len(ran) == 1


def test_there_are_commands_on_the_pages():
    assert len(OURS) > 20 and len(SCRIPTS) > 3 and len(PYTHON) > 2


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=lambda x: x if len(x) < 40 else None)
def test_what_a_script_imports_exists(page, block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("offrl"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(
                    f"{node.module}.{alias.name}"
                )


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_is_named_says_what_it_takes(script):
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.json")), ids=lambda p: p.stem)
def test_every_config_trains_evaluates_and_tests(config, tmp_path):
    if "image" in config.stem:
        pytest.skip("its images are rendered first (datasets/README.md)")
    command = [sys.executable, "train.py", "--config", config.name, "--debug"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path), "--set", "experiment.render_video=false"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "success rate" in done.stdout, done.stderr
