"""Small data in the layouts of other projects, as their scripts write it. Each function returns the
arrays of each episode, by the keys that offrl gives them."""

import json

import cv2
import h5py
import numcodecs
import numpy as np
import zarr

SIDE = 64  # pixels


def images_of(rng, length):
    """Smooth images, in which red, green and blue differ, so that JPEG changes little."""
    ramp = np.arange(SIDE) * 2 + rng.integers(0, 60, (length, 1))
    image = np.zeros((length, SIDE, SIDE, 3), np.uint8)
    image[..., 0] = 180
    image[..., 1] = ramp[:, None]
    image[..., 2] = ramp[:, :, None] // 4
    return image


def write_aloha(folder, lengths=(7, 9, 8), packed=False, seed=0):
    """ACT's record_sim_episodes.py and, with ``packed``, ALOHA's record_episodes.py."""
    rng, cameras = np.random.default_rng(seed), ("cam_high", "cam_low")
    folder.mkdir()
    episodes = {}
    for number, length in enumerate(lengths):
        arrays = {"actions": rng.uniform(-1, 1, (length, 14)).astype(np.float32)}
        for key in ("qpos", "qvel", "effort"):
            arrays[f"obs/{key}"] = rng.normal(size=(length, 14)).astype(np.float32)
        for camera in cameras:
            arrays[f"obs/{camera}_image"] = images_of(rng, length)
        episodes[f"episode_{number}"] = arrays
        with h5py.File(folder / f"episode_{number}.hdf5", "w", rdcc_nbytes=1024**2 * 2) as root:
            root.attrs["sim"] = False
            files = {key: arrays[f"obs/{key}_image"] for key in cameras}
            if packed:
                root.attrs["compress"] = True
                quality = [int(cv2.IMWRITE_JPEG_QUALITY), 95]
                files = {
                    key: [cv2.imencode(".jpg", x, quality)[1].ravel() for x in images]
                    for key, images in files.items()
                }
                sizes = np.array([[len(x) for x in one] for one in files.values()])
                files = {
                    key: np.stack([np.pad(x, (0, sizes.max() - len(x))) for x in one])
                    for key, one in files.items()
                }
                root.create_dataset("compress_len", data=sizes.astype(np.float32))
            for key, rows in files.items():
                place = f"observations/images/{key}"
                root.create_dataset(place, data=rows, chunks=(1, *rows.shape[1:]))
            for key in ("qpos", "qvel", "effort"):
                root[f"observations/{key}"] = arrays[f"obs/{key}"]
            root["action"] = arrays["actions"]
    return episodes


def write_maniskill(path, lengths=(7, 9, 8), mode="rgbd", seed=0):
    """ManiSkill's RecordEpisode; the second episode fails. mode: of observations."""
    rng, described, episodes = np.random.default_rng(seed), [], {}
    with h5py.File(path, "w") as file:
        for number, length in enumerate(lengths):
            group = file.create_group(f"traj_{number}", track_order=True)
            obs = {
                "agent/qpos": rng.normal(size=(length + 1, 9)).astype(np.float32),
                "extra/tcp_pose": rng.normal(size=(length + 1, 7)).astype(np.float32),
                "sensor_data/base_camera/rgb": images_of(rng, length + 1),
                "sensor_data/base_camera/depth": rng.integers(
                    0, 2000, (length + 1, SIDE, SIDE, 1), dtype=np.int16
                ),
            }
            names = ("agent_qpos", "extra_tcp_pose", "base_camera_image", "base_camera_depth")
            if mode == "state":
                obs, names = {"": rng.normal(size=(length + 1, 5)).astype(np.float32)}, ("flat",)
            for key, rows in obs.items():
                packing = {"compression": "gzip"} if rows.ndim == 4 else {}
                group.create_dataset(f"obs/{key}".strip("/"), data=rows, **packing)
            success = (np.arange(length) == length - 1) & (number != 1)
            arrays = {
                "actions": rng.uniform(-1, 1, (length, 8)).astype(np.float32),
                "rewards": success.astype(np.float32),
                "dones": success,
                "timeouts": (np.arange(length) == length - 1) & ~success,
            }
            stored = ("actions", "rewards", "terminated", "truncated")
            for key, rows in zip(stored, arrays.values(), strict=True):
                group[key] = rows
            group["success"] = success
            group["env_states/actors/cube"] = rng.normal(size=(length + 1, 13))
            described.append(
                {
                    "episode_id": number,
                    "episode_seed": 100 + number,
                    "control_mode": "pd_joint_pos",
                    "elapsed_steps": length,
                    "reset_kwargs": {"options": {}, "seed": 100 + number},
                    "success": bool(success[-1]),
                }
            )
            for name, rows in zip(names, obs.values(), strict=True):
                arrays |= {f"obs/{name}": rows[:-1], f"next_obs/{name}": rows[1:]}
            episodes[f"traj_{number}"] = arrays
    info = {"env_id": "PickCube-v1", "env_kwargs": {"obs_mode": mode}, "max_episode_steps": 50}
    content = {"env_info": info, "commit_info": None, "episodes": described}
    path.with_suffix(".json").write_text(json.dumps(content, indent=2))
    return episodes


def write_replay_buffer(path, lengths=(7, 9, 8), compressor="default", chunks=None, seed=0):
    """Diffusion Policy's ReplayBuffer.save_to_path, into a folder or, for ``.zip``, a zip file.
    chunks: the rows of a chunk of images."""
    rng, total = np.random.default_rng(seed), sum(lengths)
    data = {
        "action": rng.uniform(-1, 1, (total, 2)).astype(np.float32),
        "state": rng.normal(size=(total, 5)).astype(np.float32),
        "img": images_of(rng, total).astype(np.float32),
        "camera0_rgb": images_of(rng, total),
    }
    if compressor == "default":
        compressor = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.NOSHUFFLE)
    is_zip = path.suffix == ".zip"
    store = zarr.ZipStore(str(path), mode="w") if is_zip else zarr.DirectoryStore(str(path))
    root = zarr.group(store)
    group = root.create_group("data")
    for key, rows in data.items():
        parts = (chunks or 161, *rows.shape[1:]) if rows.ndim == 4 else rows.shape
        group.array(name=key, data=rows, chunks=parts, compressor=compressor)
    ends = np.cumsum(lengths).astype(np.int64)
    root.create_group("meta").array("episode_ends", ends, chunks=ends.shape)
    store.close()
    names = {"action": "actions"} | {key: f"obs/{key}" for key in data if key != "action"}
    return {
        f"demo_{i}": {names[key]: rows[end - length : end] for key, rows in data.items()}
        for i, (length, end) in enumerate(zip(lengths, ends, strict=True))
    }


def write_robosuite(path, lengths=(7, 9, 8), seed=0):
    """robosuite's gather_demonstrations_as_hdf5."""
    rng, episodes = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        for number, length in enumerate(lengths, 1):
            demo = group.create_group(f"demo_{number}")
            demo.attrs["model_file"] = "<mujoco/>"
            arrays = {
                "states": rng.normal(size=(length, 32)),
                "actions": rng.uniform(-1, 1, (length, 7)),
            }
            for key, rows in arrays.items():
                demo.create_dataset(key, data=rows)
            episodes[f"demo_{number}"] = arrays
        for key in ("date", "time"):
            group.attrs[key] = "1-1-1"
        group.attrs["repository_version"] = "1.5.2"
        group.attrs["env"] = "Lift"
        group.attrs["env_info"] = json.dumps({"env_name": "Lift", "robots": "Panda"})
    return episodes
