"""From one format to another and back, what is kept, and what is refused."""

import json

import h5py
import minari
import numpy as np
import pyarrow.parquet as parquet
import pytest
from conftest import write_demos
from conversions import ENV_ARGS, LENGTHS, convert, read, write_source
from test_d4rl import write_d4rl

from offrl.data.sequence import SequenceDataset
from offrl.data.writer import DemoWriter

LOSS = 5.0  # of 255: the mean difference that films and JPEG make in colours with edges

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of Minari's spaces


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source.hdf5")


def assert_kept(before, after, keys, lost=()):
    """Arrays are equal to the bit of float32, in every demonstration."""
    assert list(before) == list(after)
    for demo in before:
        arrays = {key for key, value in after[demo].items() if isinstance(value, np.ndarray)}
        assert arrays == set(keys)
        for key in keys - set(lost):
            expected = before[demo][key]
            kind = np.float32 if expected.dtype.kind == "f" else expected.dtype
            np.testing.assert_array_equal(after[demo][key], expected.astype(kind), f"{demo} {key}")


VECTORS = {"obs/position", "obs/speed", "obs/pose"}
REST = {"actions", "rewards", "dones"}


def test_images_that_would_be_kept_if_they_were_turned_are_named(tmp_path, caplog):
    images = {"obs/front": np.zeros((5, 3, 32, 32), np.uint8), "obs/far": np.zeros((5, 9, 9, 1))}
    with DemoWriter(tmp_path / "in.hdf5") as writer:
        writer.write({"actions": np.zeros((5, 2)), "obs/speed": np.ones((5, 2)), **images})
    assert convert(tmp_path / "in.hdf5", tmp_path / "out", "lerobot", "--fps", "10") == 0
    assert "in.hdf5: obs/front has images of another form; to keep them" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "options", "keys"),
    [
        ("d4rl", ("--obs", "pose", "speed"), {"obs/pose", "obs/speed", *REST}),
        ("minari", ("--obs", "position", "speed", "pose"), VECTORS | REST),
        ("minari", (), VECTORS | REST | {"obs/agentview_image"}),
        ("lerobot", (), VECTORS | REST | {"obs/agentview_image"}),
        ("lerobot", ("--obs", "position"), {"obs/position", *REST}),
        ("lerobot-v2.1", (), VECTORS | REST | {"obs/agentview_image"}),
    ],
)
def test_there_and_back_again(to, options, keys, source, tmp_path, caplog):
    assert convert(source, tmp_path / "other-v0", to, *options) == 0
    lost = [record.message for record in caplog.records if "left out is" in record.message]
    assert len(lost) == 1 and "states" in lost[0] and "model_file" in lost[0]
    assert ("agentview_image" in lost[0]) == ("obs/agentview_image" not in keys)
    back = (tmp_path / "other-v0", tmp_path / "back.hdf5", "robomimic", "--workers", "2")
    assert convert(*back) == 0
    (before, masks, env_args), (after, *others) = read(source), read(tmp_path / "back.hdf5")
    assert others == [masks, env_args] and env_args == ENV_ARGS
    images = {"obs/agentview_image"} & keys
    assert_kept(before, after, keys, images)
    for key, demo in ((key, demo) for key in images for demo in before):
        assert after[demo][key].dtype == np.uint8
        difference = np.abs(after[demo][key].astype(float) - before[demo][key])
        assert 0 < difference.mean() < LOSS


def test_robomimics_layout_is_copied_to_the_bit_and_frames_become_images(source, tmp_path):
    before, masks, env_args = read(source)
    framed = tmp_path / "framed.hdf5"
    with DemoWriter(framed, env_args, compression="png") as writer:
        for demo in before.values():
            writer.write(demo)
    for path in (source, framed):
        output = tmp_path / f"of_{path.name}"
        assert convert(path, output, "robomimic") == 0
        with h5py.File(output) as file:
            image = file["data/demo_11/obs/agentview_image"]  # as robomimic reads it
            np.testing.assert_array_equal(image, before["demo_11"]["obs/agentview_image"])
            assert "frames" not in image.attrs
            assert json.loads(file["data"].attrs["provenance"])["inputs"][0]["file"] == path.name
    copied, *others = read(tmp_path / "of_source.hdf5")
    assert others == [masks, env_args]
    for demo in before:
        assert copied[demo].keys() == before[demo].keys()
        for key, value in before[demo].items():
            np.testing.assert_array_equal(copied[demo][key], value)
            assert np.asarray(copied[demo][key]).dtype == np.asarray(value).dtype


def test_gaps_in_numbers_close_and_masks_follow(tmp_path, caplog):
    path = write_demos(tmp_path / "gaps.hdf5", [3, 4, 5, 6])
    with h5py.File(path, "a") as file:
        del file["data/demo_1"], file["mask"]
        file.move("data/demo_3", "data/demo_12")
        file["mask/train"] = np.array(["demo_12", "demo_0"], dtype="S")
        file["data/demo_12/obs/touch"] = np.zeros((6, 2))
    assert convert(path, tmp_path / "out.hdf5", "robomimic") == 0
    assert "left out is obs/touch: demo_0 has none" in caplog.text
    demos, masks, _ = read(tmp_path / "out.hdf5")
    assert [len(demo["actions"]) for demo in demos.values()] == [3, 5, 6]
    assert masks == {"train": ["demo_0", "demo_2"]}


# D4RL.


def test_a_d4rl_file_has_what_its_readers_expect(source, tmp_path):
    path = tmp_path / "flat.hdf5"
    assert convert(source, path, "d4rl", "--obs", "speed", "position") == 0
    before, _, _ = read(source)
    with h5py.File(path) as file:
        assert file["observations"].shape == (sum(LENGTHS), 5)
        first = before["demo_0"]
        joined = np.hstack([first["obs/position"], first["obs/speed"]]).astype(np.float32)
        np.testing.assert_array_equal(file["observations"][:5], joined)  # in the order of names
        np.testing.assert_array_equal(file["next_observations"][:4], joined[1:])
        ends = np.cumsum(LENGTHS) - 1
        assert np.flatnonzero(file["terminals"]).tolist() == ends.tolist()
        assert not file["timeouts"][()].any()
        assert {file[k].dtype.str for k in ("actions", "rewards")} == {"<f4"}


def test_a_d4rl_file_of_offrls_own_is_trained_on_by_its_keys_and_masks(source, tmp_path):
    path = tmp_path / "flat.hdf5"
    assert convert(source, path, "d4rl", "--obs", "speed", "pose") == 0
    data = SequenceDataset(path, ["speed", "pose"], filter_by_attribute="valid")
    assert data.demos == ["demo_11"] and data.env_args == ENV_ARGS
    before, _, _ = read(source)
    expected = before["demo_11"]["obs/pose"].astype(np.float32)
    np.testing.assert_array_equal(data[1]["obs"]["pose"][0], expected[1])


def test_ends_within_an_episode_cut_nothing_on_the_way_back(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5", [6, 5])
    with h5py.File(path, "a") as file:
        file["data/demo_0/dones"][2] = 1  # reached, and reached again
        file["data/demo_1/dones"][:] = 0  # never: a time limit
    assert convert(path, tmp_path / "flat.hdf5", "d4rl", "--obs", "speed") == 0
    with h5py.File(tmp_path / "flat.hdf5") as file:
        assert np.flatnonzero(file["timeouts"]).tolist() == [10]
    assert convert(tmp_path / "flat.hdf5", tmp_path / "back.hdf5", "robomimic") == 0
    demos, _, _ = read(tmp_path / "back.hdf5")
    assert demos["demo_0"]["dones"].tolist() == [0, 0, 1, 0, 0, 1]
    assert demos["demo_1"]["dones"].tolist() == [0] * 5


@pytest.mark.parametrize("to", ["robomimic", "minari", "lerobot"])
def test_files_of_d4rl_itself(to, tmp_path, caplog):
    path = write_d4rl(tmp_path / "d4rl.hdf5", next_observations=True)
    assert convert(path, tmp_path / "out", to, *(["--fps", "50"] if to == "lerobot" else [])) == 0
    assert "left out is" in caplog.text and "infos: " in caplog.text
    if to != "robomimic":
        assert convert(tmp_path / "out", tmp_path / "back.hdf5", "robomimic") == 0
    demos, _, env_args = read(tmp_path / ("out" if to == "robomimic" else "back.hdf5"))
    assert [len(demo["actions"]) for demo in demos.values()] == [4, 5, 1, 3, 3]
    with h5py.File(path) as file:
        names = {"obs/flat": "observations", "actions": "actions", "rewards": "rewards"}
        names |= {"dones": "terminals"}
        if to != "lerobot":
            names |= {"next_obs/flat": "next_observations", "timeouts": "timeouts"}
        for key, name in names.items():
            together = np.concatenate([demo[key] for demo in demos.values()])
            np.testing.assert_array_equal(together, file[name])


# Minari.


def test_minari_loads_what_was_converted(source, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert convert(source, "minari:robots/lift", "minari") == 0
    dataset = minari.load_dataset("robots/lift-v0")
    assert dataset.total_episodes == 12 and dataset.total_steps == sum(LENGTHS)
    before, _, _ = read(source)
    (episode,) = dataset.iterate_episodes([2])
    expected = before["demo_2"]["obs/position"].astype(np.float32)
    # What follows the last step was not recorded.
    np.testing.assert_array_equal(episode.observations["position"][:-1], expected)
    np.testing.assert_array_equal(episode.observations["position"][-1], expected[-1])
    assert dataset.observation_space["agentview_image"].shape == (48, 48, 3)
    assert episode.terminations.tolist() == [False] * 5 + [True]
    assert "robots" in minari.namespace.list_local_namespaces()
    assert convert("minari:robots/lift-v0", tmp_path / "back.hdf5", "robomimic") == 0
    assert convert(source, "minari:robots/lift-v0", "minari") == 1  # it is there


def test_a_dataset_of_minaris_own_keeps_what_followed_and_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    from test_minari import record

    stored = record("InvertedPendulum-v5", "pendulum/random-v0", episodes=3)
    assert convert("minari:pendulum/random-v0", tmp_path / "out.hdf5", "robomimic") == 0
    assert convert(tmp_path / "out.hdf5", tmp_path / "again-v0", "minari") == 0
    demos, _, env_args = read(tmp_path / "out.hdf5")
    assert env_args["env_name"] == "InvertedPendulum-v5" and env_args["type"] == 2
    again = minari.MinariDataset(tmp_path / "again-v0/data")
    assert again.env_spec.id == "InvertedPendulum-v5"
    for demo, episode, copy in zip(
        demos.values(), stored.iterate_episodes(), again.iterate_episodes(), strict=True
    ):
        for key, rows in (("obs/flat", slice(None, -1)), ("next_obs/flat", slice(1, None))):
            expected = episode.observations[rows].astype(np.float32)
            np.testing.assert_array_equal(demo[key], expected)
            np.testing.assert_array_equal(copy.observations[rows], expected)
        assert demo["dones"].tolist() == episode.terminations.tolist()
        assert copy.truncations.tolist() == episode.truncations.tolist()


# LeRobot.


@pytest.mark.slow
def test_a_lerobot_folder_is_as_its_layout_says(source, tmp_path):
    folder = tmp_path / "lift"
    assert convert(source, folder, "lerobot", "--task", "lift the cube") == 0
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == [
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/offrl.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "videos/observation.images.agentview/chunk-000/file-000.mp4",
    ]
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["robot_type"]) == ("v3.0", 20, "Panda")
    assert (info["total_episodes"], info["total_frames"]) == (12, sum(LENGTHS))
    state = info["features"]["observation.state"]
    assert state["shape"] == [9] and state["names"][:5] == [f"pose_{i}" for i in range(4)] + [
        "position_0"
    ]
    before, _, _ = read(source)
    rows = parquet.read_table(folder / "data/chunk-000/file-000.parquet")
    actions = np.concatenate([demo["actions"] for demo in before.values()]).astype(np.float32)
    assert np.array_equal(rows["action"].to_pylist(), actions)  # demo_2 before demo_10
    assert np.bincount(rows["episode_index"]).tolist() == LENGTHS
    steps = np.concatenate([np.arange(length) for length in LENGTHS])
    np.testing.assert_array_equal(rows["timestamp"], (steps / 20).astype(np.float32))
    episodes = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet")
    starts = np.cumsum([0, *LENGTHS])
    assert episodes["dataset_from_index"].to_pylist() == starts[:-1].tolist()
    times = episodes["videos/observation.images.agentview/from_timestamp"]
    np.testing.assert_allclose(times, starts[:-1] / 20)
    assert episodes["tasks"].to_pylist()[3] == ["lift the cube"]
    stats = json.loads((folder / "meta/stats.json").read_text())
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0), rtol=1e-5)
    assert stats["action"]["count"] == [sum(LENGTHS)]
    for kind, extreme in (("min", actions.min(0)), ("max", actions.max(0))):
        np.testing.assert_array_equal(np.float32(stats["action"][kind]), extreme)
    pixels = np.concatenate([demo["obs/agentview_image"] for demo in before.values()]) / 255
    image = stats["observation.images.agentview"]
    np.testing.assert_allclose(np.ravel(image["mean"]), pixels.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(np.ravel(image["max"]), pixels.max((0, 1, 2)))
    assert np.shape(image["q99"]) == (3, 1, 1)


def test_a_folder_of_the_layout_2_1_is_as_it_says(source, tmp_path):
    folder = tmp_path / "lift"
    assert convert(source, folder, "lerobot-v2.1", "--task", "lift the cube") == 0
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    lists = {"info.json", "offrl.json", "tasks.jsonl", "episodes.jsonl", "episodes_stats.jsonl"}
    films = "videos/chunk-000/observation.images.agentview"
    assert names == {f"meta/{name}" for name in lists} | {
        place
        for i in range(12)
        for place in (f"data/chunk-000/episode_{i:06d}.parquet", f"{films}/episode_{i:06d}.mp4")
    }
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["codebase_version"], info["total_videos"], info["total_chunks"]) == ("v2.1", 12, 1)
    episodes, stats = (
        [json.loads(line) for line in (folder / f"meta/{name}.jsonl").read_text().splitlines()]
        for name in ("episodes", "episodes_stats")
    )
    assert [e["length"] for e in episodes] == LENGTHS
    assert episodes[3] == {"episode_index": 3, "tasks": ["lift the cube"], "length": LENGTHS[3]}
    actions = read(source)[0]["demo_3"]["actions"]
    kinds = stats[3]["stats"]["action"]
    assert kinds.keys() == {"min", "max", "mean", "std", "count"} and kinds["count"] == [LENGTHS[3]]
    np.testing.assert_allclose(kinds["mean"], actions.mean(0), rtol=1e-5, atol=1e-6)
    assert np.shape(stats[3]["stats"]["observation.images.agentview"]["mean"]) == (3, 1, 1)


def test_full_files_are_followed_by_others(source, tmp_path, monkeypatch):
    for bound in ("DATA_MB", "VIDEO_MB"):
        monkeypatch.setattr(f"offrl.data.formats.lerobot_writer.{bound}", 0)
    monkeypatch.setattr("offrl.data.formats.lerobot_writer.FILES_PER_FOLDER", 5)
    monkeypatch.setattr("offrl.data.formats.lerobot_writer.ROWS", 4)
    folder = tmp_path / "lift"
    assert convert(source, folder, "lerobot", "--workers", "1") == 0
    for pattern in ("data/*/*.parquet", "videos/*/*/*.mp4"):
        assert [p.parent.name for p in sorted(folder.glob(pattern))] == [
            f"chunk-00{i // 5}" for i in range(12)
        ]
    assert convert(folder, tmp_path / "back.hdf5", "robomimic", "--workers", "1") == 0
    (before, masks, _), (after, others, _) = read(source), read(tmp_path / "back.hdf5")
    assert_kept(before, after, VECTORS | REST | {"obs/agentview_image"}, {"obs/agentview_image"})
    assert masks == others
    for demo in before:  # each has its own frames
        images, films = (d[demo]["obs/agentview_image"].astype(float) for d in (before, after))
        assert np.abs(images - films).mean((1, 2, 3)).max() < LOSS


@pytest.mark.parametrize("to", ["robomimic", "d4rl", "minari", "lerobot", "lerobot-v2.1"])
def test_outputs_are_made_where_the_program_is(to, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert convert("source.hdf5", "out-v0", to, "--obs", "speed") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-v0", "source.hdf5"]


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(source, tmp_path):
    for workers in (1, 2):
        assert convert(source, tmp_path / f"{workers}", "lerobot", "--workers", workers) == 0
    names = [p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*") if p.is_file()]
    assert len(names) == 7
    for name in names:
        if name.name != "offrl.json":  # which says what was run
            assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.parametrize("to", ["lerobot", "lerobot-v2.1"])
def test_success_task_and_rate_go_along(to, tmp_path):
    path, rng = tmp_path / "robot.hdf5", np.random.default_rng(0)
    with DemoWriter(path) as writer:
        for task, success in (("open", True), ("close", False), ("open", False)):
            rows = {"actions": rng.random((4, 1)), "obs/joint": rng.random((4, 1))}
            writer.write(rows, task=task, success=success, fps=10)
    assert convert(path, tmp_path / "set", to) == 0
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert info["total_tasks"] == 2 and info["fps"] == 10
    assert "next.reward" not in info["features"]
    assert convert(tmp_path / "set", tmp_path / "back.hdf5", "robomimic") == 0
    (before, *_), (after, *_) = read(path), read(tmp_path / "back.hdf5")
    for demo in before:
        for key in ("task", "success", "fps", "actions", "obs/joint"):
            np.testing.assert_array_equal(after[demo][key], before[demo][key])
    assert [demo["task"] for demo in after.values()] == ["open", "close", "open"]


def foreign(folder):
    """Have a folder be as other programs write it: nothing of offrl's notes, and row groups that
    hold several episodes."""
    (folder / "meta/offrl.json").unlink()
    path = folder / "data/chunk-000/file-000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table, path, row_group_size=17)


@pytest.mark.slow
def test_folders_of_other_programs_are_read(source, tmp_path):
    folder = tmp_path / "lift"
    assert convert(source, folder, "lerobot") == 0
    foreign(folder)
    assert convert(folder, tmp_path / "back.hdf5", "robomimic") == 0
    (before, *_), (after, masks, env_args) = read(source), read(tmp_path / "back.hdf5")
    assert masks == {} and env_args is None and list(after) == list(before)
    for demo, rows in after.items():
        names = [f"obs/{key}" for key in ("pose", "position", "speed")]
        parts = [before[demo][name].reshape(len(rows["actions"]), -1) for name in names]
        np.testing.assert_array_equal(rows["obs/state"], np.hstack(parts).astype(np.float32))
        assert rows["obs/agentview_image"].shape == before[demo]["obs/agentview_image"].shape
        assert rows["dones"].tolist() == before[demo]["dones"].tolist()


# robosuite's raw demonstrations.


@pytest.mark.thorough
def test_what_robosuites_script_gathers_is_played_back(tmp_path, caplog):
    import robosuite
    from robosuite.controllers import load_composite_controller_config
    from robosuite.wrappers import DataCollectionWrapper

    from offrl.envs import make_env

    scripts = pytest.importorskip("robosuite.scripts.collect_human_demonstrations")
    controller = load_composite_controller_config(robot="Panda")
    config = {"env_name": "Lift", "robots": ["Panda"], "controller_configs": controller}
    headless = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False}
    env = robosuite.make(**config, **headless, ignore_done=True, control_freq=20)
    recorder = DataCollectionWrapper(env, str(tmp_path / "episodes"))
    rng = np.random.default_rng(0)
    for _ in range(2):
        recorder.reset()
        for _ in range(5):
            recorder.step(0.3 * rng.uniform(-1, 1, 7))
        recorder.successful = True
    recorder.close()
    scripts.gather_demonstrations_as_hdf5(
        str(tmp_path / "episodes"), str(tmp_path), json.dumps(config)
    )
    raw, output = tmp_path / "demo.hdf5", tmp_path / "out.hdf5"
    assert convert(raw, output, "robomimic") == 0
    assert "has no observations; go on with offrl images" in caplog.text
    demos, _, env_args = read(output)
    assert list(demos) == ["demo_0", "demo_1"] and env_args["env_name"] == "Lift"
    with h5py.File(raw) as file:
        np.testing.assert_array_equal(demos["demo_0"]["states"], file["data/demo_1/states"])
        np.testing.assert_array_equal(demos["demo_1"]["actions"], file["data/demo_2/actions"])
        assert demos["demo_1"]["actions"].dtype == np.float64
    played = make_env(env_args)
    recording = demos["demo_1"]
    played.reset_to({"model": recording["model_file"], "states": recording["states"][2]})
    np.testing.assert_array_equal(played.get_state()["states"], recording["states"][2])
    played.close()
