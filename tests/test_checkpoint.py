import os
import re
import shutil
import signal

import pytest
import torch
from toy_env import toy_args

from offrl import (
    Trainer,
    config_from_checkpoint,
    env_from_checkpoint,
    maybe_dict_from_checkpoint,
    policy_from_checkpoint,
)
from offrl.assembly.start import start_file
from offrl.checkpoint import checkpoint_in, read_checkpoint, write_checkpoint
from offrl.reports.run import kept_checkpoints
from offrl.training import train


@pytest.fixture
def checkpoint(small_config, tmp_path):
    """A checkpoint of a training that normalises observations and actions."""
    train = {
        "hdf5_normalize_obs": True,
        "action_config": {"actions": {"normalization": "gaussian"}},
    }
    trainer = Trainer(small_config({"train": train}))
    list(trainer())
    path = tmp_path / "model.pth"
    write_checkpoint(path, trainer.state() | {"env_metadata": toy_args()})
    return path, trainer


def test_three_lines_give_a_policy_and_its_environment(checkpoint):
    path, trainer = checkpoint
    policy, ckpt = policy_from_checkpoint(path, device="cpu")
    env, _ = env_from_checkpoint(ckpt_dict=ckpt)
    obs, _ = env.reset(seed=0)
    policy.start_episode()
    action = policy(obs)
    assert action.shape == (2,)
    assert ckpt["shape_metadata"]["all_shapes"] == {"position": [3], "speed": [2]}
    assert ckpt["shape_metadata"]["ac_dim"] == 2
    # The statistics come along: the same action as from the algorithm that was trained.
    algo = trainer.algo
    algo.set_eval()
    raw = algo.get_action({k: torch.tensor(v)[None].float() for k, v in obs.items()})
    assert torch.equal(torch.tensor(action), algo.action_normalizer.unnormalize_vector(raw)[0])


def test_the_parts_of_a_checkpoint(checkpoint):
    path, trainer = checkpoint
    content = read_checkpoint(path)
    assert content.keys() >= {
        "model",
        "config",
        "algo_name",
        "env_metadata",
        "shape_metadata",
        "variable_state",
        "obs_normalization_stats",
        "action_normalization_stats",
        "rng",
        "loader",
        "provenance",
    }
    assert content["variable_state"]["step"] == 15
    assert content["provenance"]["seed"] == 1
    assert len(content["provenance"]["dataset_fingerprint"]) == 16
    config, same = config_from_checkpoint(ckpt_dict=content)
    assert config.train.hdf5_normalize_obs and same is content
    assert maybe_dict_from_checkpoint(ckpt_dict=content) is content


class Stranger:
    pass


def test_a_checkpoint_that_would_run_code_is_refused(checkpoint, tmp_path):
    path, _ = checkpoint
    content = read_checkpoint(path)
    torch.save(content | {"extra": Stranger()}, tmp_path / "foreign.pth")
    with pytest.raises(ValueError, match="foreign.pth: .*Stranger"):
        policy_from_checkpoint(tmp_path / "foreign.pth")


def test_unreadable_checkpoints_say_why(checkpoint, tmp_path):
    path, _ = checkpoint
    cut = tmp_path / "cut.pth"
    cut.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="cut.pth: "):
        read_checkpoint(cut)
    torch.save({"weights": 1}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="other.pth: .*model"):
        read_checkpoint(tmp_path / "other.pth")
    with pytest.raises(FileNotFoundError, match="nowhere.pth: "):
        read_checkpoint(tmp_path / "nowhere.pth")


def test_a_folder_stands_for_the_best_checkpoint_of_its_newest_run(trained_run, tmp_path):
    older, newer = tmp_path / "runs/20260101000000", tmp_path / "runs/20260101000000-1"
    for run in (older, newer):
        shutil.copytree(trained_run, run)
    (newer / "metrics.jsonl").unlink()  # the state tells, not the log
    first, second = reversed(kept_checkpoints(newer))
    assert checkpoint_in(newer.parent) == checkpoint_in(newer) == second
    content = read_checkpoint(second)
    content["variable_state"]["best_checkpoints"] = {
        "validation": second.name,
        "rollout_success_rate": first.name,
    }
    write_checkpoint(second, content)
    _, ckpt = policy_from_checkpoint(newer.parent, device="cpu")
    assert ckpt["variable_state"]["epoch"] == 1
    shutil.rmtree(newer / "models")
    assert start_file(str(newer.parent)) == str(newer / "last.pth")
    with pytest.raises(FileNotFoundError, match=f"^{trained_run.parents[2]}: "):
        read_checkpoint(trained_run.parents[2])


@pytest.mark.parametrize(
    "change",
    [
        {"ac_dim": None},
        {"ac_dim": "2"},
        {"all_shapes": None},
        {"all_shapes": {"position": 3, "speed": 2}},
    ],
)
def test_shapes_that_are_none_are_refused(change, checkpoint, tmp_path):
    content = read_checkpoint(checkpoint[0])
    content["shape_metadata"] = content["shape_metadata"] | change
    torch.save(content, tmp_path / "odd.pth")
    for given in ({"ckpt_path": tmp_path / "odd.pth"}, {"ckpt_dict": content}):
        with pytest.raises(ValueError, match=r"(odd\.pth|ckpt_dict): shape_metadata .*ac_dim"):
            policy_from_checkpoint(**given)


def test_weights_alone_are_no_checkpoint_as_a_dict_either(checkpoint):
    with pytest.raises(ValueError, match=r'lacks config.*algo\.deserialize\(ckpt_dict\["model"\]'):
        policy_from_checkpoint(ckpt_dict={"model": read_checkpoint(checkpoint[0])["model"]})


def test_another_algorithm_is_refused(checkpoint):
    path, trainer = checkpoint
    with pytest.raises(ValueError, match="'bc'.*'iql'"):
        config_from_checkpoint("iql", ckpt_path=path)
    state = trainer.state() | {"algo_name": "iql"}
    with pytest.raises(ValueError, match="'iql'.*'bc'"):
        trainer.restore(state)


def test_an_interrupt_waits_for_the_end_of_a_write(checkpoint, monkeypatch):
    path, trainer = checkpoint
    save = torch.save

    def interrupted(content, file):
        os.kill(os.getpid(), signal.SIGINT)
        save(content, file)

    monkeypatch.setattr(torch, "save", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(path.with_name("new.pth"), trainer.state())
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_checkpoint(path.with_name("new.pth"))["algo_name"] == "bc"


def test_a_write_that_fails_leaves_the_old_file(checkpoint, monkeypatch):
    path, _ = checkpoint
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError):
        write_checkpoint(path, {"model": 1})
    assert path.read_bytes() == before


def test_a_checkpoint_of_a_newer_offrl_says_so(checkpoint, tmp_path, caplog):
    path, trainer = checkpoint
    newer = read_checkpoint(path)
    newer["provenance"]["offrl"] = "99.0"
    write_checkpoint(tmp_path / "newer.pth", newer)
    for _ in range(2):
        policy_from_checkpoint(tmp_path / "newer.pth")
    (message,) = caplog.messages
    assert re.search(r"newer\.pth: written by offrl 99\.0.*\(0\.1\.0\).*upgrade", message)

    both = "offrl 99.0.*0.1.0"
    config = newer["config"].replace('"batch_size"', '"size_of_batch"')
    write_checkpoint(tmp_path / "config.pth", newer | {"config": config})
    with pytest.raises(ValueError, match=f"config.pth: .*size_of_batch.*{both}"):
        policy_from_checkpoint(tmp_path / "config.pth")
    weights = newer["model"]["nets"]
    weights["policy.more"] = weights.popitem()[1]
    write_checkpoint(tmp_path / "weights.pth", newer)
    with pytest.raises(ValueError, match=f"weights.pth: .*policy.more.*{both}"):
        policy_from_checkpoint(tmp_path / "weights.pth")
    write_checkpoint(trainer.run.last_checkpoint, newer)
    with pytest.raises(ValueError, match=f"last.pth: .*policy.more.*{both}"):
        train(trainer.config, trainer.run)


def test_a_checkpoint_of_this_offrl_needs_no_word(checkpoint, caplog):
    path, _ = checkpoint
    content = read_checkpoint(path)
    content["model"]["nets"].popitem()
    with pytest.raises(ValueError) as error:
        policy_from_checkpoint(ckpt_dict=content)
    assert "upgrade" not in str(error.value) and not caplog.messages
