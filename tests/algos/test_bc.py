import h5py
import numpy as np
import pytest
import torch

from offrl import Trainer, algo_factory, config_factory


@pytest.mark.slow
@pytest.mark.parametrize("head", ["deterministic", "gaussian", "gmm"])
def test_bc_finds_the_demonstrators_rule(tmp_path, small_config, head):
    """Actions are a known function of the observations; on new ones the error must be small."""
    rng = np.random.default_rng(0)
    rule = rng.standard_normal((5, 2)) / 2
    path = tmp_path / "linear.hdf5"
    with h5py.File(path, "w") as file:
        for i in range(40):
            obs = rng.standard_normal((25, 5))
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/position"], demo["obs/speed"] = obs[:, :3], obs[:, 3:]
            demo["actions"] = np.tanh(obs @ rule)
    algo = {
        "actor_layer_dims": [64, 64],
        "optim_params": {"policy": {"learning_rate": {"initial": 3e-3}}},
    }
    if head != "deterministic":
        algo[head] = {"enabled": True}
    trainer = Trainer(
        small_config(
            {
                "experiment": {"epoch_every_n_steps": 600},
                "train": {"data": str(path), "num_epochs": 1, "batch_size": 64},
                "algo": algo,
            }
        )
    )
    list(trainer())
    trainer.algo.set_eval()
    obs = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    actions = trainer.algo.get_action({"position": obs[:, :3], "speed": obs[:, 3:]})
    expected = torch.tanh(obs @ torch.tensor(rule, dtype=torch.float32))
    assert torch.mean((actions - expected) ** 2) < 0.01 < 0.2 < expected.var()


def test_loss_weights_are_the_configs(small_config):
    losses = {"l2_weight": 0.5, "l1_weight": 2.0, "cos_weight": 0.25}
    config = small_config({"algo": {"loss": losses}})
    trainer = Trainer(config)
    batch = trainer.algo.process_batch_for_training(next(iter(trainer.loader)))
    info = trainer.algo.train_on_batch(batch, epoch=1, validate=True)
    expected = 0.5 * info["L2_Loss"] + 2.0 * info["L1_Loss"] + 0.25 * info["Cosine_Loss"]
    assert float(info["loss"]) == pytest.approx(float(expected))


def test_gradients_are_clipped(small_config):
    config = small_config({"train": {"max_grad_norm": 1e-3}})
    for record in Trainer(config)():
        if record["type"] == "train":
            assert record["logs"]["Policy_Grad_Norms"] <= 1.0001e-6


def test_a_goal_is_asked_for_where_the_policy_needs_one():
    config = config_factory(
        "bc",
        {"observation": {"modalities": {"obs": {"low_dim": ["x"]}, "goal": {"low_dim": ["x"]}}}},
    )
    algo = algo_factory("bc", config, {"x": [3]}, ac_dim=2, device="cpu")
    assert algo.get_action({"x": torch.zeros(4, 3)}, {"x": torch.ones(4, 3)}).shape == (4, 2)
    with pytest.raises(ValueError, match="observation.modalities.goal"):
        algo.get_action({"x": torch.zeros(4, 3)})


def test_an_observation_without_a_shape_is_named():
    with pytest.raises(ValueError, match="robot0_eef_pos"):
        algo_factory("bc", config_factory("bc"), {"x": [3]}, ac_dim=2, device="cpu")


@pytest.mark.parametrize(
    ("algo", "train", "words"),
    [
        (
            {"transformer": {"enabled": True, "context_length": 4}},
            {"frame_stack": 3},
            "train.frame_stack: 3.*algo.transformer.context_length",
        ),
        (
            {
                "transformer": {
                    "enabled": True,
                    "context_length": 4,
                    "pred_future_acs": True,
                    "supervise_all_steps": True,
                }
            },
            {"frame_stack": 4, "seq_length": 1},
            "train.seq_length: 1.*algo.transformer.pred_future_acs",
        ),
        ({"transformer": {"pred_future_acs": True}}, {}, "pred_future_acs: .*supervise_all_steps"),
        ({"transformer": {"activation": "relu"}}, {}, "algo.transformer.activation: .*'geglu'"),
        ({"vae": {"prior": {"use_gmm": True}}}, {}, "use_gmm: .*algo.vae.prior.learn"),
        (
            {"vae": {"prior": {"use_gmm": True, "learn": True, "use_categorical": True}}},
            {},
            "algo.vae.prior.use_gmm .*use_categorical",
        ),
        (
            {"vae": {"enabled": True, "decoder": {"is_conditioned": False}}},
            {},
            "algo.vae.decoder.is_conditioned",
        ),
    ],
)
def test_contradictions_are_named(small_config, algo, train, words):
    with pytest.raises(ValueError, match=words):
        Trainer(small_config({"algo": algo, "train": train}))


def test_a_transformer_that_predicts_what_comes_acts_on_its_first_output(small_config):
    switches = {"pred_future_acs": True, "supervise_all_steps": True}
    size = {"embed_dim": 16, "num_heads": 2, "num_layers": 1, "context_length": 3}
    overrides = {
        "algo": {"transformer": {"enabled": True, **switches, **size}},
        "train": {"frame_stack": 3, "seq_length": 3},
    }
    algo = Trainer(small_config(overrides)).algo
    algo.set_eval()
    obs = {"position": torch.randn(2, 3, 3), "speed": torch.randn(2, 3, 2)}
    pi, _ = algo.action_distribution(obs)
    torch.testing.assert_close(algo.act(obs)[0], pi.at(0).mode())


def test_windows_shorter_than_the_memory_are_pointed_out(small_config, caplog):
    recurrent = {"algo": {"rnn": {"enabled": True, "hidden_dim": 4}}}
    assert Trainer(small_config(recurrent)).config.train.seq_length == 10  # follows the memory
    assert not caplog.text
    Trainer(small_config(recurrent | {"train": {"seq_length": 2}}))
    assert "algo.rnn.horizon = 10" in caplog.text
