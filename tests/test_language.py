"""Instructions: their embedding, training on them, acting on them."""

import json

import h5py
import numpy as np
import pytest
import torch
from conftest import train_completely, write_demos
from toy_env import toy_args

from offrl import Trainer, language, policy_from_checkpoint
from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset
from offrl.training import Checkpointer

SENTENCES = ("walk home", "run away")


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory):
    """CLIP's text half with few random weights, as its files lie in a cache."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = [*letters, *(f"{x}</w>" for x in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=len(tokens),
        hidden_size=16,
        intermediate_size=16,
        projection_dim=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=len(tokens) - 2,
        eos_token_id=len(tokens) - 1,
    )
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def clip(tiny_clip, monkeypatch):
    monkeypatch.setattr(language, "MODEL", tiny_clip)


@pytest.fixture
def config(small_config, tmp_path):
    """Two files with an instruction each, evaluated in an environment each."""
    data = []
    for name, lang in zip(("one", "two"), SENTENCES, strict=True):
        path = tmp_path / f"{name}.hdf5"
        write_demos(path, env_args=json.dumps(toy_args()))
        data.append({"path": str(path), "lang": lang, "key": name})
    keys = ["position", "lang_emb"]
    return lambda overrides=None: small_config(
        {
            "train": {"data": data, "hdf5_normalize_obs": True} | (overrides or {}),
            "observation": {"modalities": {"obs": {"low_dim": keys}}},
            "experiment": {
                "rollout": {"enabled": True, "n": 2, "horizon": 3, "rate": 3, "num_workers": 1},
                "render_video": False,
            },
        }
    )


@pytest.mark.slow
def test_sentences_have_embeddings(clip):
    home, away = language.embed(SENTENCES).values()
    assert home.shape == (8,) and home.dtype == np.float32
    assert not np.allclose(home, away)
    np.testing.assert_allclose(home, language.embed(["walk home"])["walk home"], atol=1e-6)
    (long,) = language.embed(["walk " * 100]).values()
    assert long.shape == (8,) and language.embed([]) == {}


def test_a_model_that_is_not_there_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(language, "MODEL", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="train.data.lang: .*hf download"):
        language.embed(["walk home"])


def test_constants_are_those_of_their_file(tmp_path):
    paths = [str(tmp_path / f"{i}.hdf5") for i in range(2)]
    for path in paths:
        write_demos(path)
    constants = [{"lang_emb": np.full(4, i, dtype=np.float32)} for i in (1, 2)]
    options = {"load_next_obs": True, "hdf5_normalize_obs": True, "frame_stack": 2}
    dataset = SequenceDataset(paths, ["position", "lang_emb"], constants=constants, **options)
    batch = dataset.get_batch(torch.tensor([0, 17, 18, 35]))
    assert dataset.obs_shapes["lang_emb"] == (4,)
    for group in ("obs", "next_obs"):
        assert batch[group]["lang_emb"].shape == (4, 2, 4)
        assert batch[group]["lang_emb"][:, 1, 0].tolist() == [1, 1, 2, 2]
    assert dataset[35]["obs"]["lang_emb"].tolist() == [[2.0] * 4] * 2
    assert set(dataset.get_obs_normalization_stats()) == {"position"}


@pytest.mark.slow
def test_a_policy_learns_from_instructions_and_keeps_them(clip, config, monkeypatch, tmp_path):
    trainer = Trainer(config())
    seen = []
    act = trainer.algo.act
    monkeypatch.setattr(
        trainer.algo, "act", lambda obs, *rest: (seen.append(obs["lang_emb"]), act(obs, *rest))[1]
    )
    records = train_completely(trainer)
    assert [r["env"] for r in records if r["type"] == "env_rollout"] == ["one", "two"]
    expected = [torch.from_numpy(x) for x in language.embed(SENTENCES).values()]
    first, last = (batch[batch.abs().sum((1, 2)) > 0][0, 0] for batch in (seen[0], seen[-1]))
    assert torch.equal(first, expected[0]) and torch.equal(last, expected[1])

    def no_model(sentences):
        raise AssertionError("the checkpoint holds the embedding")

    monkeypatch.setattr("offrl.checkpoint.embed", no_model)
    monkeypatch.setattr("offrl.data.datasets.embed", no_model)
    policy, content = policy_from_checkpoint(trainer.run.last_checkpoint)
    assert content["env_metadata"]["lang"] == "walk home"
    assert np.array_equal(policy.instruction, expected[0].numpy())
    policy.start_episode()
    action = policy({"position": np.zeros(3)})
    assert np.array_equal(policy({"position": np.zeros(3), "lang_emb": np.ones(8)}), action)
    policy.instruction = None  # the environment's
    assert not np.array_equal(policy({"position": np.zeros(3), "lang_emb": np.ones(8)}), action)
    with pytest.raises(ValueError, match="lang_emb .*policy.instruction.*--lang"):
        policy({"position": np.zeros(3)})
    resumed = Trainer(config(), run=trainer.run)
    assert np.array_equal(resumed.instructions["run away"], expected[1].numpy())

    last, out = str(trainer.run.last_checkpoint), str(tmp_path / "out.hdf5")
    other = ["--lang", "run away", "--n", "2", "--horizon", "3", "--record", out]
    assert main(["rollout", "--checkpoint", last, *other]) == 0
    with h5py.File(out) as file:
        assert json.loads(file["data"].attrs["env_args"])["lang"] == "run away"


def test_a_policy_without_ears_says_so(small_config, demos, capsys):
    write_demos(demos, env_args=json.dumps(toy_args()))
    trainer = Trainer(small_config())
    list(Checkpointer(trainer)(trainer()))
    last = str(trainer.run.last_checkpoint)
    assert main(["rollout", "--checkpoint", last, "--lang", "run away"]) == 1
    assert "this policy sees no instructions" in capsys.readouterr().err


def test_one_instruction_is_kept_without_an_environment(clip, small_config, demos):
    config = small_config(
        {
            "train": {"data": [{"path": str(demos), "lang": "walk home"}]},
            "observation": {"modalities": {"obs": {"low_dim": ["lang_emb"]}}},
        }
    )
    trainer = Trainer(config)
    list(Checkpointer(trainer)(trainer()))
    policy, content = policy_from_checkpoint(trainer.run.last_checkpoint)
    assert content["env_metadata"] is None
    assert np.array_equal(policy.instruction, trainer.instructions["walk home"])


def test_instructions_are_for_all_datasets_or_for_none(clip, config, caplog):
    data = [dict(entry) for entry in config().to_dict()["train"]["data"]]
    data[1]["lang"] = None
    with pytest.raises(ValueError, match="train.data.lang: "):
        Trainer(config({"data": data}))
    unseen = config()
    unseen.observation.modalities.obs["low_dim"] = ["position"]
    assert Trainer(unseen).instructions == {} and "does not see it; add lang_emb" in caplog.text


@pytest.mark.slow
def test_a_stored_embedding_needs_no_model(small_config, demos):
    write_demos(demos, env_args=json.dumps(toy_args() | {"lang": "of whoever recorded it"}))
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo["obs/lang_emb"] = np.ones((len(demo["actions"]), 5))
    config = small_config(
        {
            "train": {"hdf5_normalize_obs": True},
            "observation": {"modalities": {"obs": {"low_dim": ["lang_emb"]}}},
            "experiment": {"rollout": {"enabled": True, "n": 2, "horizon": 3, "rate": 3}},
        }
    )
    trainer = Trainer(config)
    assert trainer.dataset.obs_shapes == {"lang_emb": (5,)}
    assert trainer.dataset.get_obs_normalization_stats() == {}
    (logs,) = (r["logs"] for r in train_completely(trainer) if r["type"] == "rollout")
    assert logs["n"] == 2
    policy, _ = policy_from_checkpoint(ckpt_dict=trainer.state())
    assert policy.instruction.tolist() == [1.0] * 5
