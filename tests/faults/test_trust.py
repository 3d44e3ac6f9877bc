"""What a file names is imported only where the user named it, too, and only what is registered
there is called."""

import importlib
import json
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from conftest import write_demos
from doublers import make_slow_doubler
from toy_env import toy_args

from offrl import (
    config_factory,
    config_from_checkpoint,
    env_from_checkpoint,
    policy_from_checkpoint,
)
from offrl.__main__ import main
from offrl.envs import make_env
from offrl.envs.vector import make_vector_env
from offrl.envs.workers import EnvPool
from offrl.modules import allow_names, class_named, named
from offrl.processes import in_order, program

MINE = """
import gymnasium
from offrl.algos.base import register_algo
from offrl.algos.bc import BC, BCConfig
from offrl.envs.gymnasium import GymnasiumAdapter
from offrl.registry import ENVS
from toy_env import ToyEnv

class MineConfig(BCConfig):
    ALGO_NAME = "mine"

@register_algo(MineConfig)
class Mine(BC):
    pass

ENVS.register("toy")(lambda *args: GymnasiumAdapter(ToyEnv(), *args))
gymnasium.register("Mine-v0", entry_point="toy_env:ToyEnv")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The working folder, with a module ``mine_to_run`` that files name and nobody else does, and
    a package with a module."""
    (tmp_path / "mine_to_run.py").write_text(MINE)
    (tmp_path / "mine_package").mkdir()
    (tmp_path / "mine_package/__init__.py").touch()
    (tmp_path / "mine_package/part.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OFFRL_MODULES")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "mine_to_run"
    for name in ("mine_to_run", "mine_package", "mine_package.part"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("Mine-v0", None)
    importlib.invalidate_caches()


@pytest.fixture
def naming(trained_run, tmp_path):
    """A function: names in a checkpoint of a trained policy -> the file."""

    def write(algo_name=None, env=None, **observation):
        content = torch.load(trained_run / "last.pth", weights_only=True)
        config = json.loads(content["config"])
        if algo_name:
            content["algo_name"] = config["algo_name"] = algo_name
        config["observation"]["encoder"]["low_dim"] |= observation.get("encoder", {})
        config["observation"]["modalities"]["obs"] |= observation.get("modalities", {})
        content["env_metadata"] = env or content["env_metadata"]
        torch.save(content | {"config": json.dumps(config)}, tmp_path / "from_elsewhere.pth")
        return tmp_path / "from_elsewhere.pth"

    return write


def environment(env_name, kind=2):
    return {"env_name": env_name, "type": kind, "env_kwargs": {}}


POLICIES = {
    "algorithm": {"algo_name": "mine_to_run.mine"},
    "core": {"encoder": {"core_class": "mine_to_run.net"}},
    "backbone": {
        "encoder": {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "mine_to_run.x"}}
    },
    "pooling": {"encoder": {"core_kwargs": {"pool_class": "mine_to_run.x"}}},
    "randomizer": {"encoder": {"obs_randomizer_class": ["CropRandomizer", "mine_to_run.x"]}},
    "modality": {"modalities": {"mine_to_run.touch": ["position"]}},
}
ENVIRONMENTS = {
    "name": environment("mine_to_run:Mine-v0"),
    "line break": environment("mine_to_run:Mine\n-v0"),
    "type": environment("Mine-v0", "mine_to_run.toy"),
    "atari": environment("mine_to_run:Mine-v0", "atari"),
    "robosuite": environment("mine_to_run:Lift", 1),
}
WORDS = "--module mine_to_run, .*modules=.'mine_to_run'.*OFFRL_MODULES=mine_to_run"


@pytest.mark.parametrize("names", POLICIES.values(), ids=POLICIES)
def test_a_policy_that_asks_for_a_module_is_looked_at_and_not_loaded(mine, naming, names, capsys):
    checkpoint = naming(**names)
    assert main(["info", str(checkpoint)]) == 0
    for load in (policy_from_checkpoint, config_from_checkpoint):
        with pytest.raises(ValueError, match=WORDS):
            load(ckpt_path=checkpoint)
    assert main(["export-robomimic", str(checkpoint), "out.pth"]) == 1
    assert mine not in sys.modules and os.getcwd() not in sys.path


@pytest.mark.parametrize("env_args", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_environment_that_asks_for_a_module_is_not_made(mine, naming, env_args):
    checkpoint = naming(env=env_args)
    policy_from_checkpoint(checkpoint)
    for make in (make_env, EnvPool, lambda args: make_vector_env(args, 2, 0)):
        with pytest.raises(ValueError, match=WORDS):
            make(env_args)
    with pytest.raises(ValueError, match=WORDS):
        env_from_checkpoint(checkpoint)
    assert main(["info", str(checkpoint)]) == 0
    assert mine not in sys.modules


def test_what_data_names_is_not_imported_by_reading_and_not_by_training(mine, tmp_path, capsys):
    env_args = json.dumps(ENVIRONMENTS["name"])
    data = str(write_demos(tmp_path / "data.hdf5", env_args=env_args))
    for command in (["info", data], ["validate", data], ["view", data, "--output", "page"]):
        assert main(command) == 0
    assert main(["edit", "repack", data, "--output", "again.hdf5"]) == 0
    settings = ["train.batch_size=4", 'observation.modalities.obs.low_dim=["position"]']
    words = ["train", "--config", "bc.json", "--dataset", data, "--debug"]
    assert main([*words, *(word for x in settings for word in ("--set", x))]) == 1
    assert "--module mine_to_run" in capsys.readouterr().err and mine not in sys.modules


def test_a_module_that_is_named_is_imported(mine, naming, capsys):
    checkpoint = naming("mine_to_run.mine", ENVIRONMENTS["name"])
    for absent in ("mine", "./mine_to_run.py"):
        assert main(["rollout", "--checkpoint", str(checkpoint), "--module", absent]) == 1
        assert f"'{absent}'" in capsys.readouterr().err and mine not in sys.modules
    sys.path.append(os.getcwd())
    policy, content = policy_from_checkpoint(checkpoint, modules=[mine])
    env, _ = env_from_checkpoint(ckpt_dict=content)
    obs, _ = env.reset(seed=0)
    policy.start_episode()
    assert type(policy.policy).__module__ == mine and np.isfinite(policy(obs)).all()
    assert mine in named()  # in worker processes, too


@pytest.mark.slow
@pytest.mark.parametrize("form", ["option", "variable"])
def test_the_program_is_told_by_an_option_or_a_variable(mine, naming, monkeypatch, form, capfd):
    checkpoint = naming("mine_to_run.mine", ENVIRONMENTS["type"])
    words = ["rollout", "--checkpoint", str(checkpoint), "--n", "1", "--workers", "1"]
    if form == "variable":
        monkeypatch.setenv("OFFRL_MODULES", mine)
    else:
        words += ["--module", mine]
    assert main(words) == 0
    assert "return" in capfd.readouterr().out


def test_a_config_that_the_user_gives_names_its_modules(mine, monkeypatch):
    monkeypatch.syspath_prepend(os.getcwd())
    assert type(config_factory("mine_to_run.mine").algo).__module__ == mine


def test_a_run_names_again_what_was_allowed_when_it_began(mine, trained_run):
    (file,) = trained_run.glob("config-*.json")
    config = config_factory("bc", json.loads(file.read_text()))
    assert "toy_env" not in named()
    allow_names(config.to_dict())
    assert "toy_env" in named()


@pytest.mark.parametrize(
    "name", ["os.system", "json.load", "unittest.__main__", "json.tool", "torch.classes.x"]
)
def test_a_module_that_is_imported_anyway_gives_nothing_but_what_is_registered(naming, name):
    module = name.rpartition(".")[0]
    importlib.import_module(module)
    before = {*sys.modules}
    for names in ({"algo_name": name}, {"encoder": {"core_class": name}}):
        with pytest.raises(ValueError, match=f"--module {name}|{module} was imported but"):
            policy_from_checkpoint(naming(**names), modules=[module])
    for env_args in (environment("ls", name), environment(f"{module}:system")):
        with pytest.raises(ValueError, match=r"registers no|does not make|--module"):
            make_env(env_args)
    assert not {"unittest.__main__", "json.tool"} & ({*sys.modules} - before)


def test_a_package_that_is_imported_does_not_open_its_modules(mine, naming, capsys):
    sys.path.append(os.getcwd())
    importlib.import_module("mine_package")
    for name in ("mine_package.part", "mine_package.part.mine"):
        checkpoint = naming(name)
        assert main(["info", str(checkpoint)]) == 0
        assert f"{checkpoint} --module mine_package.part\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--module mine_package.part,"):
        policy_from_checkpoint(checkpoint)
    assert "mine_package.part" not in sys.modules
    policy_from_checkpoint(checkpoint, modules=["mine_package.part"])


@pytest.mark.parametrize(
    "path", ["os.system", "gymnasium.Env", "json.JSONDecoder", "FlattenObservation", "nowhere.X"]
)
def test_a_class_that_a_file_names_is_of_the_expected_kind(path):
    found = class_named("gymnasium.wrappers.FlattenObservation", gymnasium.Wrapper, "it")
    assert found is gymnasium.wrappers.FlattenObservation
    with pytest.raises(ValueError, match="^it"):
        class_named(path, gymnasium.Wrapper, "it")


@pytest.mark.parametrize("kind", [5.5, [5.5], {"a": 1}])
def test_what_is_no_type_of_an_environment_is_refused(kind):
    with pytest.raises(ValueError, match="env_args type"):
        make_env(environment("CartPole-v1", kind))


@pytest.mark.parametrize("wrappers", [7, "os.system", [3], [{"kwargs": {}}]])
def test_what_is_no_wrapper_is_refused(wrappers):
    with pytest.raises(ValueError, match="CartPole-v1.*wrapper"):
        make_env({**environment("CartPole-v1"), "wrappers": wrappers})


@pytest.mark.parametrize("said", [5, "os.system", ["a"]])
def test_what_describes_no_environment_is_refused(naming, said, capsys):
    path = str(naming(env=said))
    for words in (["info", path], ["rollout", "--checkpoint", path, "--n", "1"]):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert f"{path}: env_metadata" in error and "Traceback" not in error


def test_workers_are_told_what_their_parent_has_imported(monkeypatch):
    monkeypatch.delenv("OFFRL_MODULES")
    EnvPool(toy_args()).close()
    assert named() == ["toy_env"]


def test_programs_take_no_library_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('mine')")
    script = program("import json; print(json.__file__)")
    shown = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in shown.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no safe path")
def test_processes_that_share_work_take_none_either(tmp_path, monkeypatch):
    (tmp_path / "pickle.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    assert [value for value, _ in in_order(make_slow_doubler, ("a", 2), [1], 1)] == [2]
    assert "PYTHONSAFEPATH" not in os.environ
