"""What configs of hierarchies say, what messages about them name, and what is exported."""

import json
import logging

import numpy as np
import pytest
import torch
from conftest import GOLDEN, write_demos
from test_hierarchies import (
    BOTH,
    HBC_ALGO,
    KEYS,
    PLANNER,
    SEEN,
    SHAPES,
    SMALL,
    episodes,
    make,
    write_config,
)

from offrl import RolloutPolicy, Trainer, algo_factory, config_factory, policy_from_checkpoint
from offrl.__main__ import main
from offrl.algos import HBC, IRIS
from offrl.seeding import seed_everything
from offrl.tree import merge


def test_what_a_config_leaves_out_follows_from_the_planner():
    observation = config_factory("hbc", {"observation": {"planner": SEEN}}).observation
    assert observation.planner.modalities.subgoal.low_dim == KEYS["low_dim"]
    assert observation.actor.modalities.obs.low_dim == KEYS["low_dim"]
    assert observation.actor.modalities.goal.low_dim == KEYS["low_dim"]
    other = config_factory("iris", SMALL["iris"]).observation
    assert other.value_planner.value.modalities.obs.low_dim == KEYS["low_dim"]
    assert other.actor.modalities.goal.low_dim == KEYS["low_dim"]


def test_an_actor_that_is_to_see_no_subgoal_does_not_which_is_said_once(caplog):
    said = {"modalities": {"obs": KEYS, "goal": {"low_dim": []}}}
    with caplog.at_level(logging.WARNING, "offrl"):
        algo = make("hbc", {"observation": {"actor": said}})
    assert not algo.parts["actor"].obs_spec.keys("goal")
    (record,) = [r for r in caplog.records if "does not see its subgoal" in r.getMessage()]
    assert "observation.actor.modalities.goal" in record.getMessage()
    demos = [obs for obs in episodes()[0]]
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    assert policy(demos[0]).shape == (2,)


@BOTH
def test_robomimics_template_runs_with_a_dataset_alone(name, tmp_path):
    shapes = {"robot0_eef_pos": (3,), "robot0_eef_quat": (4,), "robot0_gripper_qpos": (2,)}
    demos = write_demos(tmp_path / "d.hdf5", (14, 12), obs=shapes | {"object": (5,)})
    template = json.loads((GOLDEN / f"configs/{name}.json").read_text())
    small = {"num_epochs": 1, "batch_size": 4, "cuda": False, "output_dir": str(tmp_path)}
    changes = {"experiment": {"rollout": {"enabled": False}, "epoch_every_n_steps": 2}}
    config = merge(merge(template, changes), {"train": small | {"data": str(demos)}})
    trainer = Trainer(config_factory(name, config))
    list(trainer())
    assert trainer.step == 2 and not trainer.algo.parts["actor"].obs_spec.keys("goal")


ACTOR_GOALS = {"actor": {"modalities": {"obs": KEYS, "goal": {"low_dim": ["speed", "colour"]}}}}
SHORT = {"train": {"seq_length": 2}}


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("hbc", SHORT, "train.seq_length: 2.*algo.planner.subgoal_horizon"),
        ("iris", SHORT, "train.seq_length: 2.*algo.value_planner.planner.subgoal_horizon"),
        (
            "hbc",
            {"observation": ACTOR_GOALS},
            "observation.actor.modalities.goal: .*colour",
        ),
        (
            "iris",
            {
                "observation": {
                    "value_planner": {"value": {"modalities": {"obs": {"low_dim": ["colour"]}}}}
                }
            },
            "observation.value_planner.value.modalities.obs: .*colour",
        ),
        ("hbc", {"algo": {"optim_params": {"policy": {}}}}, "algo.optim_params: "),
        (
            "hbc",
            {"algo": {"latent_subgoal": {"enabled": True}, "planner": {"vae": {"enabled": False}}}},
            "algo.latent_subgoal.enabled: .*algo.planner.vae.enabled",
        ),
        (
            "iris",
            {"algo": {"latent_subgoal": {"enabled": True}}},
            "algo.latent_subgoal.enabled: .*iris",
        ),
        ("hbc", {"algo": {"mode": "joint"}}, "algo.mode: .*'separate'.*'cascade'"),
        ("hbc", {"observation": {"modalities": {}}}, "observation.modalities: "),
    ],
)
def test_what_does_not_fit_together_is_one_sentence(name, overrides, words):
    seed_everything(0)
    config = {"observation": {}} | overrides
    shapes = SHAPES | {"colour": (1,)}
    with pytest.raises(ValueError, match=words):
        config = config_factory(name, merge(SMALL[name], config))
        algo_factory(name, config, shapes, 2, "cpu")


@pytest.mark.slow
@BOTH
def test_a_run_is_trained_resumed_and_exported(name, demos, tmp_path, capsys):
    config = write_config(tmp_path / "config.json", demos, name)
    assert main(["train", "--config", str(config)]) == 0
    (run,) = (tmp_path / "runs/test").iterdir()
    policy, content = policy_from_checkpoint(run / "last.pth", device="cpu")
    assert isinstance(policy.policy, {"hbc": HBC, "iris": IRIS}[name])
    theirs = tmp_path / "theirs.pth"
    assert main(["export-robomimic", str(run / "last.pth"), str(theirs)]) == 0
    exported = torch.load(theirs, weights_only=True)
    assert exported["model"].keys() == {"planner", "actor"}
    if name == "iris":
        assert exported["model"]["planner"].keys() == {"planner", "value_net"}
    back, _ = policy_from_checkpoint(theirs, device="cpu")
    for episode in episodes(2):
        actions = []
        for p in (policy, back):
            p.start_episode(seed=1)
            actions.append([p(obs) for obs in episode])
        np.testing.assert_array_equal(*actions)
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = {name for record in logs for name in record["logs"]}
    inner = "Planner/Planner" if name == "iris" else "Planner"
    assert {"Loss", "Planner/Loss", f"{inner}/KL_Loss", "Actor/L2_Loss"} <= names
    assert ("Planner/ValueNetwork/Critic/Critic1_Loss" in names) == (name == "iris")


def test_a_planners_checkpoint_is_no_hierarchys(demos, tmp_path, capsys):
    planner = {"algo": PLANNER, "observation": SEEN, "algo_name": "gl"}
    config = tmp_path / "gl.json"
    whole = json.loads(write_config(tmp_path / "c.json", demos, "hbc").read_text())
    config.write_text(json.dumps(whole | planner))
    assert main(["train", "--config", str(config)]) == 0
    (run,) = (tmp_path / "runs/test").iterdir()
    start = {"experiment": {"ckpt_path": str(run / "last.pth")}}
    hbc = write_config(tmp_path / "hbc.json", demos, "hbc", {})
    hbc.write_text(json.dumps(merge(json.loads(hbc.read_text()), start)))
    capsys.readouterr()
    assert main(["train", "--config", str(hbc)]) == 1
    assert "a checkpoint of 'gl', but 'hbc' was asked for" in capsys.readouterr().err


@pytest.mark.slow
@BOTH
def test_what_robomimic_has_not_is_not_exported(name, demos, tmp_path, capsys):
    changes = {"train": {"frame_stack": 2}}
    config = write_config(tmp_path / "config.json", demos, name, changes)
    assert main(["train", "--config", str(config)]) == 0
    (run,) = (tmp_path / "runs/test").iterdir()
    assert main(["export-robomimic", str(run / "last.pth"), str(tmp_path / "theirs.pth")]) == 1
    assert "robomimic's planners see one frame" in capsys.readouterr().err


def test_latents_are_not_exported(demos, tmp_path, capsys):
    latent = {"algo": {"latent_subgoal": {"enabled": True}}}
    config = write_config(tmp_path / "config.json", demos, "hbc", latent)
    assert main(["train", "--config", str(config)]) == 0
    (run,) = (tmp_path / "runs/test").iterdir()
    assert main(["export-robomimic", str(run / "last.pth"), str(tmp_path / "theirs.pth")]) == 1
    assert "latent subgoals" in capsys.readouterr().err


def test_vectors_may_be_matrices_and_images_are_seen_by_the_planner_alone():
    seen = {"low_dim": ["position"], "rgb": ["view"]}
    observation = {"planner": {"modalities": {"obs": seen, "subgoal": seen}}}
    config = config_factory("hbc", {"algo": HBC_ALGO, "observation": observation})
    alone = seen | {"rgb": [], "depth": [], "scan": []}
    assert config.observation.actor.modalities.goal == alone
    judged = config_factory("iris", {"observation": {"value_planner": observation}}).observation
    assert judged.value_planner.value.modalities.obs == alone
    config = config_factory(
        "hbc",
        {"algo": HBC_ALGO, "observation": {"planner": {"modalities": {"obs": {"low_dim": ["p"]}}}}},
    )
    algo = algo_factory("hbc", config, {"p": (2, 3)}, 2, "cpu")
    assert algo.parts["actor"].obs_spec.shapes("goal") == {"p": (2, 3)}


def test_an_instruction_is_no_subgoal():
    seen = {"modalities": {"obs": {"low_dim": ["position", "lang_emb"]}}}
    observation = config_factory("hbc", {"observation": {"planner": seen}}).observation
    assert observation.planner.modalities.subgoal.low_dim == ["position"]
    assert observation.actor.modalities.goal.low_dim == ["position"]
    assert "lang_emb" in observation.actor.modalities.obs.low_dim


def test_robomimics_decoders_are_always_conditioned():
    template = json.loads((GOLDEN / "configs/iris.json").read_text())
    parts = template["algo"]["value_planner"]
    for vae in (parts["planner"]["vae"], parts["value"]["action_sampler"]["vae"]):
        vae["decoder"]["is_conditioned"] = False
    made = config_factory("iris", template).algo.value_planner
    assert made.planner.vae.decoder.is_conditioned
    assert made.value.action_sampler.vae.decoder.is_conditioned


PLACES = {
    "hbc": [
        ({"algo": {"planner": {"subgoal_horizon": 9}}}, "algo.planner.subgoal_horizon: 9"),
        (
            {"algo": {"planner": {"vae": {"prior": {"use_gmm": True}}}}},
            "algo.planner.vae.prior.use_gmm: .*algo.planner.vae.prior.learn",
        ),
        (
            {"observation": {"planner": {"modalities": {"goal": KEYS}}}},
            "^observation.planner.modalities.goal: .*train.goal_mode",
        ),
    ],
    "iris": [
        (
            {"algo": {"value_planner": {"planner": {"subgoal_horizon": 9}}}},
            "algo.value_planner.planner.subgoal_horizon: 9",
        ),
        (
            {"algo": {"value_planner": {"value": {"critic": {"value_bounds": [0.0, 0.1]}}}}},
            "algo.value_planner.value.critic.value_bounds: .0, 0.1.",
        ),
        (
            {
                "algo": {"value_planner": {"value": {"n_step": 5}}},
                "train": {"seq_length": 4},
            },
            "train.seq_length: 4.*algo.value_planner.value.n_step",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [(name, *case) for name, cases in PLACES.items() for case in cases],
)
def test_a_message_names_the_place_in_the_config(name, overrides, words, demos, tmp_path):
    config = write_config(tmp_path / "config.json", demos, name, overrides)
    with pytest.raises(ValueError, match=words):
        Trainer(config_factory(name, json.loads(config.read_text())))
