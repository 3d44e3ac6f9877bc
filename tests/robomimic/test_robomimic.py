"""robomimic's configs and checkpoints of other versions; what is written for robomimic."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from conftest import GOLDEN

from offrl import (
    RolloutPolicy,
    Trainer,
    algo_factory,
    config_factory,
    policy_from_checkpoint,
    register_obs_key,
)
from offrl.__main__ import main
from offrl.checkpoint import write_checkpoint
from offrl.registry import MODALITIES
from offrl.robomimic import checkpoints, configs
from offrl.robomimic.configs import upgrade_config
from offrl.robomimic.weights import weights_from_robomimic, weights_to_robomimic
from offrl.specs import Modality, processed_shapes
from offrl.training.checkpointer import Checkpointer
from offrl.tree import merge


def complete(**sections):
    """A whole config of robomimic's, with ``sections`` laid over it."""
    return merge(json.loads((GOLDEN / "configs/bc.json").read_text()), sections)


def test_robomimics_configs_train_on_padded_steps_and_ours_do_not():
    assert config_factory("bc", complete()).train.mask_padded_steps is False
    ours = config_factory("bc")
    assert ours.train.mask_padded_steps
    assert config_factory("bc", ours.to_dict()).train.mask_padded_steps


@pytest.mark.parametrize("name", sorted(p.stem for p in GOLDEN.glob("configs/*.json")))
def test_a_whole_file_of_robomimics_is_known_by_its_keys(name):
    content = json.loads((GOLDEN / f"configs/{name}.json").read_text())
    assert upgrade_config(content)["train"]["mask_padded_steps"] is False


def without(path):
    content = complete()
    section, _, key = path.partition(".")
    del content[section][key]
    return content


@pytest.mark.parametrize(
    ("content", "decided"),
    [
        ({"train": {"hdf5_use_swmr": True}}, "experiment.name, .*train.data, "),
        (without("train.goal_mode"), "also have train.goal_mode$"),
        (without("experiment.video_skip"), "also have experiment.video_skip$"),
    ],
)
def test_a_config_that_is_partly_robomimics_is_ours_and_it_is_said_why(content, decided, caplog):
    configs._say_once.cache_clear()
    for _ in range(2):
        assert config_factory("bc", content).train.mask_padded_steps is True
    (message,) = caplog.messages
    assert "read as offrl's" in message and re.search(decided, message)


def test_a_config_of_ours_says_nothing(caplog):
    configs._say_once.cache_clear()
    config_factory("bc", {"train": {"batch_size": 5, "seed": 2}, "experiment": {"name": "x"}})
    config_factory("bc", config_factory("bc").to_dict())
    assert not caplog.messages


def test_a_vaes_decoder_is_conditioned_in_robomimic_whatever_its_config_says():
    vae = {"vae": {"decoder": {"is_conditioned": False}}}
    assert config_factory("bc", complete(algo=vae)).algo.vae.decoder.is_conditioned
    assert not config_factory("bc", {"algo": vae}).algo.vae.decoder.is_conditioned


def test_keys_of_earlier_versions_are_moved_or_reported_once(caplog):
    encoder = {
        "low_dim": {"feature_dimension": None, "core_class": None, "core_kwargs": None},
        "rgb": {
            "feature_dimension": 32,
            "core_class": "VisualCore",
            "core_kwargs": {"backbone_class": "ShallowConv"},
            "pool_class": "SpatialSoftmax",
            "pool_kwargs": {"num_kp": 16},
        },
    }
    with caplog.at_level(logging.WARNING):
        config = config_factory(
            "bc",
            complete(experiment={"mse": {"enabled": False}}, observation={"encoder": encoder}),
        )
    assert config.observation.encoder["low_dim"].core_kwargs == {}
    assert config.observation.encoder["rgb"].core_kwargs == {
        "backbone_class": "ShallowConv",
        "feature_dimension": 32,
        "pool_class": "SpatialSoftmax",
        "pool_kwargs": {"num_kp": 16},
    }
    assert [r.message for r in caplog.records if "experiment.mse" in r.message]
    with pytest.raises(ValueError, match="experiment.mse"):
        config_factory("bc", {"experiment": {"mse": {}}})


def robomimic_checkpoint(name="bc"):
    return torch.load(GOLDEN / f"cases/{name}/model.pth", weights_only=True)


def test_checkpoints_of_earlier_versions_load(tmp_path):
    new = robomimic_checkpoint()
    keys = new["shape_metadata"]["all_shapes"]
    means = {
        k: {"mean": torch.full((1, *s), 2.0), "std": torch.ones(1, *s)} for k, s in keys.items()
    }
    old = {
        **{k: v for k, v in new.items() if k != "action_normalization_stats"},
        "model": new["model"]["nets"],
        "obs_normalization_stats": means,
    }
    policy, _ = policy_from_checkpoint(ckpt_dict=old, device="cpu")
    plain, _ = policy_from_checkpoint(ckpt_dict=new, device="cpu")
    obs = {k: torch.randn(1, *s) for k, s in keys.items()}
    shifted = {k: v + 2.0 for k, v in obs.items()}
    torch.testing.assert_close(policy.policy.get_action(shifted), plain.policy.get_action(obs))


def test_statistics_that_a_policy_needs_are_asked_for():
    content = robomimic_checkpoint()
    config = json.loads(content["config"])
    config["train"]["action_config"] = {"actions": {"normalization": "min_max"}}
    del content["action_normalization_stats"]
    content["config"] = json.dumps(config)
    with pytest.raises(ValueError, match="action_normalization_stats"):
        policy_from_checkpoint(ckpt_dict=content, device="cpu")


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ({"vae": {"enabled": True}, "rnn": {"enabled": True}}, "algo.vae.enabled and algo.rnn"),
        ({"gaussian": {"enabled": True, "use_tanh": True}}, "algo.gaussian.use_tanh"),
        ({"transformer": {"enabled": True, "causal": False}}, "algo.transformer"),
    ],
)
def test_policies_that_robomimic_has_not_are_not_exported(
    small_config, tmp_path, capsys, algo, words
):
    trainer = Trainer(small_config({"algo": algo}))
    write_checkpoint(tmp_path / "ours.pth", trainer.state())
    paths = [str(tmp_path / name) for name in ("ours.pth", "theirs.pth")]
    assert main(["export-robomimic", *paths]) == 1
    assert f"robomimic has no policy with {words}" in capsys.readouterr().err


@pytest.mark.parametrize("pool_class", ["SpatialSoftmax", None])
def test_film_networks_come_back_from_robomimics_names(pool_class):
    """Names as robomimic 0.5 gives them: ``_base_block``, ``_conv_blocks``, ``_film_layers``."""
    rgb = {"core_class": "VisualCoreLanguageConditioned", "core_kwargs": {"pool_class": pool_class}}
    obs = {"low_dim": ["lang_emb", "speed"], "rgb": ["image"]}
    config = config_factory(
        "bc", {"observation": {"modalities": {"obs": obs}, "encoder": {"rgb": rgb}}}
    )
    shapes = {"lang_emb": (6,), "speed": (2,), "image": (3, 64, 64)}
    nets = algo_factory("bc", config, shapes, 4, "cpu").nets
    theirs = weights_to_robomimic(nets)
    core = "policy.nets.encoder.nets.obs.obs_nets.image"
    for name, shape in {
        "backbone._base_block.0.weight": (64, 3, 7, 7),
        "backbone._conv_blocks.2.downsample.0.weight": (128, 64, 1, 1),
        "backbone._film_layers.7.lang_proj.weight": (1024, 6),
        "nets.0._film_layers.0.lang_proj.bias": (128,),
        f"nets.{3 if pool_class else 2}.weight": (64, 64 if pool_class else 2048),
    }.items():
        assert theirs[f"{core}.{name}"].shape == shape, name
    back = weights_from_robomimic(theirs)
    assert back.keys() == nets.state_dict().keys()
    assert all(torch.equal(back[k], v) for k, v in nets.state_dict().items())


def test_weights_of_another_architecture_are_named(tmp_path):
    content = robomimic_checkpoint()
    content["model"]["nets"]["policy.nets.stranger.weight"] = torch.zeros(1)
    write_checkpoint(tmp_path / "odd.pth", content)
    with pytest.raises(ValueError, match=r"policy.nets.stranger.weight"):
        policy_from_checkpoint(tmp_path / "odd.pth")


@pytest.mark.parametrize("switch", [{}, {"rnn": {"enabled": True, "horizon": 5}}])
def test_an_exported_checkpoint_is_robomimics_and_acts_the_same(small_config, tmp_path, switch):
    algo = {"gmm": {"enabled": True}, **switch}
    trainer = Trainer(
        small_config(
            {
                "algo": algo,
                "train": {"hdf5_normalize_obs": True, "seq_length": 3},
                "observation": {"modalities": {"obs": {"low_dim": ["speed", "position"]}}},
            }
        )
    )
    list(Checkpointer(trainer)(trainer()))
    source, target = str(trainer.run.last_checkpoint), str(tmp_path / "theirs.pth")
    assert main(["export-robomimic", source, target]) == 0
    assert main(["export-robomimic", source, target]) == 1  # nothing is overwritten
    theirs = torch.load(target, weights_only=True)
    assert theirs.keys() == robomimic_checkpoint().keys() | {"obs_normalization_stats"}
    assert theirs["model"].keys() == robomimic_checkpoint()["model"].keys()
    ours, back = (policy_from_checkpoint(p, device="cpu")[0].policy for p in (source, target))
    assert theirs["model"]["nets"].keys() == weights_to_robomimic(ours.nets).keys()
    assert list(theirs["shape_metadata"]["all_shapes"]) == ["position", "speed"]
    obs = {"position": torch.randn(2, 4, 3), "speed": torch.randn(2, 4, 2)}
    first, second = (policy.action_distribution(obs)[0].mean for policy in (ours, back))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["bcq", "cql", "iql", "td3_bc"])
def test_exported_critics_are_a_list_as_robomimics(small_config, tmp_path, name):
    algo = {"actor": {"enabled": True}} if name == "bcq" else {}
    trainer = Trainer(small_config({"algo": algo}, name))
    list(Checkpointer(trainer)(trainer()))
    source, target = str(trainer.run.last_checkpoint), str(tmp_path / "theirs.pth")
    assert main(["export-robomimic", source, target]) == 0
    model = torch.load(target, weights_only=True)["model"]
    assert {"critic.0.nets.decoder.nets.value.bias", "critic_target.1.nets.mlp._model.0.bias"} < (
        model["nets"].keys()
    )
    assert (
        len(model["optimizers"]["critic"]) == 2 and model["lr_schedulers"]["critic"] == [None] * 2
    )
    ours, back = (policy_from_checkpoint(p, device="cpu")[0].policy for p in (source, target))
    weights = ours.nets.state_dict()
    assert all(torch.equal(weights[k], v) for k, v in back.nets.state_dict().items())


def test_algorithms_that_robomimic_has_not_are_not_exported(small_config, tmp_path, capsys):
    trainer = Trainer(small_config({}, "awac"))
    write_checkpoint(tmp_path / "ours.pth", trainer.state())
    paths = [str(tmp_path / name) for name in ("ours.pth", "theirs.pth")]
    assert main(["export-robomimic", *paths]) == 1
    assert "robomimic has no awac" in capsys.readouterr().err


def test_a_user_decides_on_padded_steps_in_a_file_of_robomimics(caplog):
    old = {"experiment": {"mse": {"enabled": False}}, "train": {"mask_padded_steps": True}}
    encoder = {"low_dim": {"core_class": None, "core_kwargs": None}}
    content = complete(**old, observation={"encoder": encoder})
    assert config_factory("bc", content).train.mask_padded_steps is True
    assert "experiment.mse" in caplog.text


NEWER = {
    "algo": {"transformer": {"causal": True}, "language_conditioned": False},
    "train": {"data_format": "robomimic"},
    "experiment": {"rollout": {"batched": False, "num_batch_envs": 25}},
}


def test_keys_of_robomimics_other_revisions_say_what_is_so_anyway():
    plain, config = config_factory("bc", complete()), config_factory("bc", complete(**NEWER))
    assert config.dump() == plain.dump()
    assert config.train.mask_padded_steps is False


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("algo.transformer.causal", 0, "boolean"),
        ("algo.language_conditioned", True, "False.*True.*lang_emb"),
        ("train.data_format", "r2d2", "'robomimic'.*'r2d2'"),
        ("experiment.rollout.batched", True, "False.*True.*num_workers"),
        ("experiment.rollout.num_batch_envs", "x", "integer"),
        ("experiment.rollout.batched", 0, "boolean"),
    ],
)
def test_keys_of_robomimics_other_revisions_that_ask_for_more_are_refused(path, value, words):
    overrides = value
    for key in reversed(path.split(".")):
        overrides = {key: overrides}
    for config in (complete(**overrides), overrides):
        with pytest.raises(ValueError, match=f"{path}: .*{words}"):
            config_factory("bc", config)


@pytest.mark.parametrize(
    ("said", "steps"),
    [({}, 10_000), ({"num_warmup_steps": 30}, 30), ({"warmup_steps": 2}, 2)],
)
def test_the_warm_up_of_forks_counts_training_steps(said, steps):
    said = {"scheduler_type": "constant_with_warmup", "epoch_schedule": [100], **said}
    algo = {"optim_params": {"policy": {"learning_rate": said}}}
    rate = config_factory("bc", {"algo": algo}).algo.optim_params["policy"].learning_rate
    assert rate.warmup_steps == steps
    assert rate.step_every_batch == ("warmup_steps" not in said)
    assert "num_warmup_steps" not in rate.to_dict()
    said |= {"warmup_steps": 1, "num_warmup_steps": 2}
    with pytest.raises(ValueError, match=r"learning_rate\.num_warmup_steps"):
        config_factory("bc", {"algo": algo})


@pytest.mark.parametrize("value", [None, 3, "x", [], [1], {}])
@pytest.mark.parametrize(
    "path", ["algo", "algo.vae", "algo.vae.decoder", "observation", "observation.encoder.rgb"]
)
def test_a_file_of_robomimics_with_something_else_for_a_section_is_refused(path, value):
    content = complete()
    *above, key = path.split(".")
    section = content
    for name in above:
        section = section[name]
    section[key] = value
    if value == {}:
        assert config_factory("bc", content)
    else:
        with pytest.raises(ValueError, match=path):
            config_factory("bc", content)


# -- loops of robomimic's -------------------------------------------------------------------------


def algo_of(case, content):
    config = json.loads((GOLDEN / f"cases/{case}/config.json").read_text())
    shapes = content["shape_metadata"]
    config = config_factory(config["algo_name"], config)
    return algo_factory(
        config.algo_name, config, shapes["all_shapes"], shapes["ac_dim"], device="cpu"
    )


@pytest.mark.parametrize("case", ["bc", "iql", "bc_vae", "hbc", "diffusion_policy_small"])
def test_what_robomimics_algorithms_serialize_is_deserialized(case, tmp_path):
    content = robomimic_checkpoint(case)
    torch.save({"model": content["model"]}, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"algo\.deserialize\(.*model\.pth"):
        policy_from_checkpoint(str(tmp_path / "model.pth"))
    algo = algo_of(case, content)
    algo.deserialize(torch.load(tmp_path / "model.pth", weights_only=True)["model"])
    expected = checkpoints.upgrade_checkpoint(content)["model"]["nets"]
    nets = algo.serialize()
    nets = nets["nets"] if "nets" in nets else algo.nets.state_dict()
    assert {*nets} == {*expected} and all(torch.equal(nets[k], expected[k]) for k in nets)


def test_robomimics_calls_around_an_update(small_config):
    trainer = Trainer(small_config({"train": {"hdf5_normalize_obs": True}}))
    algo, stats = trainer.algo, trainer.dataset.get_obs_normalization_stats()
    batch = algo.process_batch_for_training(trainer.dataset.get_batch(torch.arange(4)))
    assert algo.postprocess_batch_for_training(batch, obs_normalization_stats=stats) is batch
    algo.train_on_batch(batch, epoch=1)
    algo.on_gradient_step()
    state = algo.serialize()
    for load_optimizers in (False, True):
        fresh = Trainer(trainer.config).algo
        fresh.deserialize(state, load_optimizers=load_optimizers)
        assert bool(fresh.serialize()["optimizers"]["policy"]["state"]) == load_optimizers
    algo.set_statistics(obs={}, actions={})
    with pytest.raises(ValueError, match="set_statistics"):
        algo.postprocess_batch_for_training(batch, obs_normalization_stats=stats)


def test_images_need_the_shapes_that_networks_see():
    obs = {"low_dim": [], "rgb": ["eye"], "depth": ["far"]}
    config = config_factory("bc", {"observation": {"modalities": {"obs": obs}}})
    stored = {"eye": (84, 84, 3), "far": (84, 84, 1)}
    seen = processed_shapes(config.observation, stored)
    assert algo_factory("bc", config, seen, ac_dim=7, device="cpu").obs_spec.shapes("obs") == seen
    for key in stored:
        with pytest.raises(ValueError, match=rf"{key}.*\[C, H, W\].*\[84, 84, .*processed_shapes"):
            algo_factory("bc", config, {**seen, key: stored[key]}, ac_dim=7, device="cpu")


@pytest.mark.parametrize(
    ("how", "size"), [({"normalization": "min_max"}, 6), ({"format": "rot_6d"}, 3)]
)
def test_a_loop_that_tells_no_statistics_gets_no_actions_in_other_units(how, size, small_config):
    config = small_config({"train": {"action_config": {"actions": how}}})
    shapes = {key: (2,) for key in config.all_obs_keys}
    algo = algo_factory("bc", config, shapes, ac_dim=6, device="cpu")
    policy = RolloutPolicy(algo)
    policy.start_episode()
    with pytest.raises(ValueError, match=r"train\.action_config.*set_statistics"):
        policy({key: np.zeros(2) for key in shapes})
    algo.set_statistics({}, {"actions": {"scale": np.ones((1, 6)), "offset": np.zeros((1, 6))}})
    assert policy({key: np.zeros(2) for key in shapes}).shape == (size,)


def test_all_observations_of_a_config():
    assert config_factory("bc", complete()).all_obs_keys == [
        "object",
        "robot0_eef_pos",
        "robot0_eef_quat",
        "robot0_gripper_qpos",
    ]
    modalities = {"obs": {"low_dim": ["b", "a"], "rgb": ["eye"]}, "goal": {"low_dim": ["a", "c"]}}
    config = config_factory("bc", {"observation": {"modalities": modalities}})
    assert config.all_obs_keys == ["a", "b", "c", "eye"]


def test_modalities_are_registered_by_robomimics_function():
    @register_obs_key
    class Touch(Modality):
        name = "touched"

    assert MODALITIES["touched"] is Touch
    for wrong in (type("Other", (), {"name": "x"}), type("Nameless", (Modality,), {})):
        with pytest.raises(ValueError, match=wrong.__name__):
            register_obs_key(wrong)


# -- diffusion policies ---------------------------------------------------------------------------

SMALL_UNET = {
    "diffusion_step_embed_dim": 8,
    "down_dims": [8, 16],
    "kernel_size": 3,
    "n_groups": 4,
}


def test_sizes_of_a_unet_come_from_its_weights():
    """robomimic ignored those of its config."""
    content = robomimic_checkpoint("diffusion_policy_small")
    config = json.loads(content["config"])
    right = dict(config["algo"]["unet"])
    config["algo"]["unet"] |= {"down_dims": [64, 128, 256], "kernel_size": 5}
    policy, _ = policy_from_checkpoint(ckpt_dict=content | {"config": json.dumps(config)})
    assert policy.policy.algo_config.unet.to_dict() == right


def test_the_groups_of_a_unet_of_robomimics_sizes_are_robomimics(monkeypatch):
    """They cannot be seen in weights."""
    content = robomimic_checkpoint("diffusion_policy_small")
    unet = json.loads(content["config"])["algo"]["unet"]
    sizes = {key: unet[key] for key in SMALL_UNET}
    monkeypatch.setattr(checkpoints, "UNET", sizes | {"n_groups": 2})
    policy, _ = policy_from_checkpoint(ckpt_dict=content)
    assert policy.policy.algo_config.unet.n_groups == 2


def test_an_exported_diffusion_policy_acts_as_before(small_config, tmp_path, monkeypatch, capsys):
    """By its averaged weights, which robomimic has beside the others."""
    overrides = {
        "algo": {
            "unet": SMALL_UNET,
            "horizon": {"action_horizon": 2, "prediction_horizon": 4},
            "ddpm": {"num_train_timesteps": 10, "num_inference_timesteps": 2},
        },
        "train": {"action_config": {"actions": {"normalization": "min_max"}}},
    }
    trainer = Trainer(small_config(overrides, "diffusion_policy"))
    list(trainer())
    paths = [str(tmp_path / name) for name in ("ours.pth", "theirs.pth")]
    write_checkpoint(paths[0], trainer.state())
    assert main(["export-robomimic", *paths]) == 1
    assert "has always a U-Net of these sizes" in capsys.readouterr().err
    monkeypatch.setattr(checkpoints, "UNET", SMALL_UNET)
    averaging = small_config(
        merge(overrides, {"algo": {"temporal_ensemble": 0.1}}), "diffusion_policy"
    )
    other = str(tmp_path / "averaging.pth")
    write_checkpoint(other, Trainer(averaging).state())
    assert main(["export-robomimic", other, paths[1]]) == 1
    assert "algo.temporal_ensemble null" in capsys.readouterr().err
    assert main(["export-robomimic", *paths]) == 0

    theirs = torch.load(paths[1], weights_only=True)
    config = json.loads(theirs["config"])
    assert config["algo"]["ema"] == {"enabled": True, "power": 0.75}
    assert "ema" not in config["train"]
    name = "policy.noise_pred_net.final_conv.1.weight"
    assert torch.equal(theirs["model"]["nets"][name], theirs["model"]["ema"][name])
    obs = {"position": np.ones(3), "speed": np.zeros(2)}
    actions = []
    for path in paths:
        policy, _ = policy_from_checkpoint(path, device="cpu")
        policy.start_episode(seed=0)
        actions.append(policy(obs))
    np.testing.assert_array_equal(*actions)
