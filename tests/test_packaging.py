"""Wheels, and how a package finds what ships with it in a clone and in a wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from conftest import ROOT

import offrl
from offrl.__main__ import main
from offrl.config import files
from offrl.data.formats.files import MADE_BY

NAME = f"offrl-{offrl.__version__}"
CONFIGS = sorted((ROOT / "configs").glob("*.json"))
NEEDED = ("offrl", "configs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
SDIST = "from setuptools.build_meta import build_sdist as build; build('dist')"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The folder of a package that is installed as a wheel leaves it; the work is elsewhere."""
    package = tmp_path / "site-packages/offrl"
    shutil.copytree(ROOT / "configs", package / "configs")
    (package / "registry.py").write_text("")
    monkeypatch.setattr(files, "SHIPPED", package)
    monkeypatch.setattr(files, "IS_WHEEL", True)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return package


@pytest.fixture
def trained(capsys):
    """A function: the arguments of ``offrl train`` -> its exit status and what it said."""

    def train(*arguments):
        status = main(["train", *arguments])
        return status, capsys.readouterr().err

    return train


# -- what is built --------------------------------------------------------------------------------


def build_wheel(tree, folder):
    """The content of the wheel of a source tree, file by file."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, tree], check=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as content:
        return {name: content.read(name) for name in content.namelist()}


@pytest.mark.thorough
def test_a_wheel_holds_the_package_and_the_configs_also_from_an_sdist(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in (*NEEDED, "CHANGELOG.md", "CITATION.cff"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    for stale in (tree / "build/lib/offrl/stale.py", tree / "build/lib/offrl/configs/stale.json"):
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.write_text("")
    (tmp_path / "wheel").mkdir()
    (tmp_path / "of_sdist").mkdir()

    built = build_wheel(tree, tmp_path / "wheel")
    assert not [name for name in built if "stale" in name]
    shipped = {str(file.relative_to(ROOT)) for file in (ROOT / "configs").rglob("*.json")}
    assert {f"offrl/{name}" for name in shipped} <= set(built)
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "offrl").rglob("*.py")}
    pages = {str(file.relative_to(ROOT)) for file in (ROOT / "offrl/reports/view/assets").iterdir()}
    assert (
        modules | pages | {"offrl/py.typed"} <= set(built)
        and "offrl/reports/view/assets/index.html" in pages
    )
    assert {name.split("/")[0] for name in built} == {"offrl", f"{NAME}.dist-info"}
    assert built[f"{NAME}.dist-info/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()

    subprocess.run([sys.executable, "-c", SDIST], cwd=tree, check=True, capture_output=True)
    with tarfile.open(tree / f"dist/{NAME}.tar.gz") as sdist:
        sdist.extractall(tmp_path)
    again = build_wheel(tmp_path / NAME, tmp_path / "of_sdist")
    assert again == built


def test_every_file_that_names_the_version_names_the_same_one():
    version = re.escape(offrl.__version__)
    for name, line in {
        "setup.py": f'    version="{version}",',
        "CITATION.cff": f"version: {version}",
        "CHANGELOG.md": rf"## {version} \(\d{{4}}-\d\d-\d\d\)",
    }.items():
        assert re.search(f"^{line}$", (ROOT / name).read_text(), re.M), name


# -- what is found --------------------------------------------------------------------------------


def test_a_wheel_finds_its_own_configs_and_nothing_else_beside_them(wheel, tmp_path):
    for name in ("bc.json", "configs/bc.json"):
        assert files.find_file(name, "configs") == wheel / "configs/bc.json"
    online = wheel / "configs/online/cartpole_ppo.json"
    assert files.find_file("online/cartpole_ppo.json", "configs") == online
    for other in ("configs/other.json", "datasets/lift/low_dim.hdf5"):  # of other packages
        place = wheel.parent / other
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{}")
        with pytest.raises(FileNotFoundError, match=f"^{other}"):
            files.find_file(other, "configs")
    with pytest.raises(FileNotFoundError, match="^registry.py"):
        files.find_file("registry.py", "configs")  # code
    (tmp_path / "work/bc.json").write_text("{}")
    assert files.find_file("bc.json", "configs") == tmp_path / "work/bc.json"


def test_a_clone_finds_its_configs_and_data_from_any_folder(tmp_path, monkeypatch, demos):
    monkeypatch.chdir(tmp_path)
    assert not files.IS_WHEEL and files.SHIPPED == ROOT
    for name in ("bc.json", "configs/bc.json"):
        assert files.find_file(name, "configs") == ROOT / "configs/bc.json"
    assert files.find_file("datasets/lift/low_dim.hdf5") == ROOT / "datasets/lift/low_dim.hdf5"
    assert files.find_file(demos.name) == demos


@pytest.mark.slow
def test_a_package_tells_by_itself_whether_it_is_a_wheel(tmp_path):
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "offrl", tmp_path / "site/offrl", ignore=without)
    shutil.copytree(ROOT / "configs", tmp_path / "site/offrl/configs")
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-m", "offrl", "train", "--config", "bc.json", "--print-config"]
    done = subprocess.run(
        command,
        cwd=tmp_path / "work",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "site/offrl/configs/bc.json") in done.stderr
    assert json.loads(done.stdout)["algo_name"] == "bc"


# -- which config it is ---------------------------------------------------------------------------


def test_in_a_clone_nothing_is_said_of_its_configs(trained, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("bc.json", "configs/bc.json", "./configs/bc.json", str(ROOT / "configs/bc.json")):
        assert trained("--config", name, "--print-config") == (0, "")


def test_a_config_that_is_found_elsewhere_is_named(wheel, trained):
    for name in ("bc.json", "configs/bc.json"):
        status, said = trained("--config", name, "--print-config")
        assert status == 0
        assert said == f"config: {wheel}/configs/bc.json (offrl {offrl.__version__})\n"


def test_a_config_of_the_same_name_here_is_not_used_without_a_word(wheel, trained, tmp_path):
    here = tmp_path / "work/configs/bc.json"
    shutil.copytree(ROOT / "configs", here.parent)
    _, said = trained("--config", "bc.json", "--print-config")
    assert said.endswith(f"(offrl {offrl.__version__})\n")  # its content is the same
    here.write_text('{"algo_name": "bc", "train": {"seed": 77}}')
    _, said = trained("--config", "bc.json", "--print-config")
    assert said.count("\n") == 1 and str(wheel / "configs/bc.json") in said
    assert "configs/bc.json is another one and is not used" in said
    (advice,) = re.findall(r"--config (\S+)", said)
    status, said = trained("--config", advice, "--print-config")
    assert status == 0 and said.startswith(f"config: {here}; ")  # and so says which it is, too
    assert f"{wheel}/configs/bc.json is another one and is not used" in said


# -- data that is not there -----------------------------------------------------------------------


WITH_DATA = [config for config in CONFIGS if config.stem != "finetune"]
WITH_DATA.append(ROOT / "configs/online/push_sac.json")


@pytest.mark.parametrize("config", WITH_DATA, ids=lambda file: file.stem)
def test_a_training_whose_data_is_missing_names_the_command_that_makes_it(
    config, wheel, trained, tmp_path
):
    data = json.loads(config.read_text())["train"]["data"]
    name = config.relative_to(ROOT / "configs")
    status, said = trained("--config", str(name), "--debug")
    assert status == 1
    error = said.splitlines()[-1]
    assert error == f"offrl: error: {data}: no such file here; make it with: {MADE_BY[data]}"
    assert MADE_BY[data].endswith(f"--output {data}")
    assert not list((tmp_path / "work").iterdir())


def test_the_command_for_images_names_the_one_for_what_it_needs(wheel, capsys, tmp_path):
    words = MADE_BY["datasets/lift/images.hdf5"].split()
    assert main(words[1:]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"make it with: {MADE_BY['datasets/lift/low_dim.hdf5']}\n")
    assert not list((tmp_path / "work").iterdir())


def test_the_page_on_datasets_shows_the_same_commands():
    page = (ROOT / "datasets/README.md").read_text()
    shown = [" ".join(line.split()) for line in page.replace("\\\n", " ").splitlines()]
    for data, command in MADE_BY.items():
        assert command in shown, data
