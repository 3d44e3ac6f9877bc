"""The wording of errors, in one table: what is wrong, where, and what to do.

Other tests know an error by its type, and by the key or the name in it.
"""

import copy
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, write_demos

from offrl import RolloutPolicy, Trainer, config_factory, policy_from_checkpoint
from offrl.config.build import check_longer
from offrl.config.files import find_config, parse_override, read_config_file
from offrl.data.formats.files import open_demos
from offrl.edits.selection import Condition
from offrl.envs import make_env
from offrl.envs.wrappers import Adapted
from offrl.testing import state  # noqa: F401 (it registers a core)
from offrl.tree import merge

TOUCH = {"low_dim": ["touch"]}
TWO_MODES = {"encoder": {"low_dim": {"core_class": "two_modes"}}}  # has a batch norm


class Place:
    """A folder with demonstrations, and what people do there."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.demos = write_demos(folder / "demos.hdf5")
        self.content = self.demos.read_bytes()

    def config(self, algo_name="bc", **sections):
        paths = {"data": str(self.demos), "output_dir": str(self.folder / "runs")}
        small = merge(copy.deepcopy(SMALL), {"train": paths})
        return config_factory(algo_name, merge(small, sections))

    def trainer(self, **train):
        return Trainer(self.config(algo={"actor_layer_dims": [8]}, train=train))

    def holding(self, name, content):
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def act(self, value):
        policy = RolloutPolicy(self.trainer().algo)
        policy.start_episode()
        policy({"position": np.full(3, value), "speed": np.zeros(2)})


# ``{folder}`` is where it happens, and ``...`` what other libraries say, or a list of names.
TABLE = [
    # layouts of other projects
    (
        lambda place: open_demos(place.folder),
        "{folder}: a folder, but neither of a run (config-*.json) nor of data (meta/info.json, "
        "data/metadata.json, episode_N.hdf5, meta/episode_ends); name a file in it, or another "
        "folder",
    ),
    (
        lambda place: open_demos(place.holding("x.tfrecord-00000-of-00001", b"")),
        "{folder}/x.tfrecord-00000-of-00001: TFRecord files (RLDS) are not read, which takes "
        "TensorFlow; copy its steps with tensorflow_datasets and offrl.DemoWriter "
        "(docs/howto/own_data.md)",
    ),
    (
        lambda place: (
            [place.holding(f"episode_{n}.hdf5", b"") for n in ("1", "01")]
            and open_demos(place.demos.rename(place.folder / "episode_2.hdf5").parent)
        ),
        "{folder}: episode_01.hdf5 and episode_1.hdf5 have one number; take one out",
    ),
    # configs
    (
        lambda place: place.config(train={"batch_sise": 4}),
        "train.batch_sise: unknown key. Did you mean train.batch_size?",
    ),
    (
        lambda place: place.config(train={"batch_size": "many"}),
        "train.batch_size: input should be a valid integer, got 'many'",
    ),
    (
        lambda place: place.config("bcc"),
        "unknown algorithm 'bcc'. Did you mean 'bc'? Known: a2c, act, ..., xql.",
    ),
    (
        lambda place: find_config("bcc.json"),
        "bcc.json: no such file (looked for .../configs/bcc.json, ...). Did you mean 'bc.json'?",
    ),
    (
        lambda place: find_config("nosuch.json"),
        "nosuch.json: no such file (looked for .../configs/nosuch.json, ...)",
    ),
    (
        lambda place: read_config_file(place.holding("bad.json", b'{"train": ')),
        "{folder}/bad.json: not valid JSON: ...",
    ),
    (
        lambda place: parse_override("train.batch_size"),
        "--set train.batch_size: expected KEY=VALUE, e.g. train.batch_size=256",
    ),
    # environments
    (
        lambda place: Adapted(type("Mine", (), {"reset": lambda _: 0, "step": lambda *_: 0})()),
        "Mine: it has no observation_space; set self.observation_space to one of gymnasium.spaces, "
        "or self.env to the environment that it wraps",
    ),
    # data
    (
        lambda place: place.trainer(data=str(place.folder / "nowhere.hdf5")),
        "{folder}/nowhere.hdf5: no such file",
    ),
    (
        lambda place: place.trainer(data=str(place.holding("cut.hdf5", place.content[:1000]))),
        "{folder}/cut.hdf5: not a readable HDF5 file (...); it may be cut off: copy it again",
    ),
    (
        lambda place: place.trainer(hdf5_filter_key="test"),
        "{folder}/demos.hdf5: no filter key 'test' (mask/test); the file has: train, valid; name "
        "one of them, or use all demonstrations (train.hdf5_filter_key=null, "
        "experiment.validate=false)",
    ),
    (
        lambda place: place.trainer(batch_size=19),
        "train.batch_size: 19 is more than the 18 windows of {folder}/demos.hdf5 (3 demos); lower "
        "it",
    ),
    (
        lambda place: place.trainer(batch_size=5, accumulate=4),
        "train.accumulate: 4 batches of 5 are more than the 18 windows of {folder}/demos.hdf5 (3 "
        "demos); lower it",
    ),
    (
        lambda place: check_longer(place.config(), place.config(train={"seed": 2}), {}),
        "--set train.seed: 2, but the run was trained with 1, and what it has learned depends on "
        "that; it can be made longer (train.num_epochs); for another training start a new run "
        "from its weights (experiment.ckpt_path)",
    ),
    (
        lambda place: list(Trainer(place.config(train={"batch_size": 1}, observation=TWO_MODES))()),
        "train.batch_size: a normalisation layer (batch norm, for example) has only one number for "
        "each channel to learn from (...); use larger batches or larger images, or networks "
        "without such a layer",
    ),
    (
        lambda place: place.trainer(frame_stack=40, pad_frame_stack=False),
        "{folder}/demos.hdf5: demo_0 has 5 steps, too few for windows of frame_stack 40 and "
        "seq_length 1 without padding; set train.pad_seq_length and train.pad_frame_stack to true",
    ),
    (
        lambda place: Trainer(place.config(observation={"modalities": {"obs": TOUCH}})),
        "{folder}/demos.hdf5: data/demo_0 has no 'obs/touch'; it has obs/position, obs/speed; a "
        "config names what it uses in observation.modalities",
    ),
    (
        lambda place: Condition("lenght < 3")({"length": 3}),
        "the condition 'lenght < 3' asks for lenght; known are length",
    ),
    (
        lambda place: Condition("len(x) < 3"),
        "the condition 'len(x) < 3' uses Call; allowed are ..., e.g. 'length < 100 and return > "
        "0.5'",
    ),
    # environments and policies
    (
        lambda place: make_env({"env_name": "Hopper-v99", "type": 2, "env_kwargs": {}}),
        "gymnasium does not make 'Hopper-v99': .... Did you mean 'Hopper-v5'? One of your "
        'own is named "module:Id", where the module registers it and can be imported',
    ),
    (
        lambda place: policy_from_checkpoint(place.folder / "nowhere.pth"),
        "{folder}/nowhere.pth: no such checkpoint",
    ),
    (
        lambda place: policy_from_checkpoint(place.holding("cut.pth", b"PK")),
        "{folder}/cut.pth: not a checkpoint, or one that is cut off; copy it again",
    ),
    (
        lambda place: RolloutPolicy(place.trainer().algo)({}),
        "call policy.start_episode() before the first observation",
    ),
    (
        lambda place: place.act(np.nan),
        "the action is NaN or infinite (position is): ...; call start_episode() before going on",
    ),
]


@pytest.mark.parametrize(("cause", "message"), TABLE, ids=[message[:40] for _, message in TABLE])
def test_errors_say_what_is_wrong_where_and_what_to_do(tmp_path, cause, message):
    pattern = re.escape(message.replace("{folder}", str(tmp_path))).replace(re.escape("..."), ".*")
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        cause(Place(tmp_path))
    assert re.fullmatch(pattern, str(error.value), re.S), str(error.value)
