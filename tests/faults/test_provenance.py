"""The commit or version that results name is that of the package, whatever lies around it."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

import offrl
from offrl.training.run import git_commit

pytestmark = pytest.mark.slow  # each copies the package

VERSION = f"v{offrl.__version__}"
ASK = "from offrl.training.run import git_commit; print(git_commit())"


def git(folder, *arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
    command = ["git", *who, *arguments]
    return subprocess.check_output(command, cwd=folder, text=True, env=clean()).strip()


def clean(**others):
    return {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | others


def commit(folder, *files):
    git(folder, "init", "-q")
    git(folder, "add", "-f", *files)
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "HEAD")[:8]


def install(folder):
    """The package and nothing else, as a wheel leaves it."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "offrl", folder / "offrl", ignore=without)
    return folder


def said_by(folder):
    """What the package in ``folder`` says itself, in a process that imports it from there."""
    environ = clean(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    return subprocess.check_output(
        [sys.executable, "-c", ASK], cwd=folder, env=environ, text=True
    ).strip()


@pytest.fixture
def said(monkeypatch):
    """What a package in ``folder`` would say, without the seconds that its import takes."""

    def ask(folder, **environ):
        with monkeypatch.context() as there:
            there.setattr("offrl.training.run.PROJECT_ROOT", folder)
            for name, value in environ.items():
                there.setenv(name, value)
            return git_commit()

    return ask


@pytest.fixture
def clone(tmp_path):
    folder = install(tmp_path / "clone")
    return folder, commit(folder, "offrl")


def test_a_clone_names_its_commit_and_what_differs_from_it(clone, said):
    folder, sha = clone
    assert said(folder) == said_by(folder) == sha
    with open(folder / "offrl/__init__.py", "a") as file:
        file.write("# mine\n")
    assert said(folder) == f"{sha}-dirty"


@pytest.mark.thorough
def test_an_installed_package_names_its_version_in_whatever_repository(tmp_path, said):
    (tmp_path / "mine.py").write_text("print()")
    commit(tmp_path, "mine.py")
    site = install(tmp_path / "venv/lib/site-packages")
    assert said(site) == said_by(site) == VERSION
    git(tmp_path, "add", "-f", "venv")  # even one that tracks its environment, or vendors a copy
    git(tmp_path, "commit", "-qm", "environment")
    assert said(site) == VERSION
    commit(site, "offrl")
    git(site, "rm", "-q", "--cached", "-r", "offrl")
    git(site, "commit", "-qm", "no package", "--allow-empty")
    assert said(site) == VERSION  # a repository of site-packages that does not track it


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE"])
def test_a_repository_that_the_environment_names_is_not_asked(clone, tmp_path, name, said):
    folder, sha = clone
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.py").write_text("")
    commit(tmp_path / "other", "mine.py")
    other = tmp_path / "other" / (".git" if name == "GIT_DIR" else "")
    assert said(folder, **{name: str(other)}) == sha


def test_a_broken_clone_within_a_repository_names_no_commit_of_that(tmp_path, said):
    (tmp_path / "mine.py").write_text("")
    commit(tmp_path, "mine.py")
    folder = install(tmp_path / "clone")
    (folder / ".git").mkdir()
    assert said(folder) == "nogit"


def test_without_git_a_clone_names_no_commit_and_a_wheel_its_version(clone, tmp_path, said):
    (tmp_path / "bin").mkdir()
    assert said(clone[0], PATH=str(tmp_path / "bin")) == "nogit"
    assert said(install(tmp_path / "site"), PATH=str(tmp_path / "bin")) == VERSION


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_clone_of_another_user_names_its_commit_and_is_left_as_it_is(clone, said):
    folder, sha = clone
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
    with open(folder / "offrl/tree.py", "a") as file:
        file.write("# mine\n")
    index = (folder / ".git/index").stat()
    assert said(folder, HOME="/nonexistent") == f"{sha}-dirty"
    after = (folder / ".git/index").stat()
    assert (after.st_uid, after.st_mtime_ns) == (12345, index.st_mtime_ns)


def test_a_worktree_names_its_own_commit(clone, tmp_path, said):
    folder, sha = clone
    git(folder, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-qm", "more", "--allow-empty")
    assert said(folder) == sha
    assert said(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD")[:8] != sha
