"""Folders in LeRobot's layouts 2.0, 2.1 and 3.0, written here as data sets of the hub have them."""

import io
import json

import numpy as np
import pytest
from conversions import smooth_images
from PIL import Image

from offrl.data.formats.film import Film, encode_film

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

VERSIONS = ("v2.0", "v2.1", "v3.0")
LENGTHS = (7, 12, 9)
TASKS = ("open the drawer", "close it")
CAMERA = "observation.images.front"
V2 = {
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
V3 = {
    "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


def make_episodes(lengths=LENGTHS, size=48, seed=0):
    """The arrays of episodes, by the names of features, and the task of each."""
    rng = np.random.default_rng(seed)
    return [
        {
            "observation.state": rng.random((n, 3), np.float32),
            "action": rng.random((n, 2), np.float32),
            CAMERA: smooth_images(rng, n, size),
            "task": TASKS[i % 2],
        }
        for i, n in enumerate(lengths)
    ]


def write_folder(
    folder, version="v2.1", kind="video", fps=20, channels_first=False, stats=False, episodes=None
):
    """Write a folder, and return the episodes in it. kind: of the camera, video or image."""
    episodes = make_episodes() if episodes is None else episodes
    size = list(episodes[0][CAMERA].shape[1:])
    shapes = {name: list(episodes[0][name].shape[1:]) for name in ("observation.state", "action")}
    features = {
        name: {"dtype": "float32", "shape": shape, "names": [f"motor_{i}" for i in range(shape[0])]}
        for name, shape in shapes.items()
    }
    names = ["height", "width", "channels"]
    turn = (2, 0, 1) if channels_first else (0, 1, 2)
    features[CAMERA] = {"dtype": kind, "shape": [size[i] for i in turn]}
    features[CAMERA]["names"] = [names[i] for i in turn]
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        dtype = "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    is_new = version == "v3.0"
    info = {
        "codebase_version": version,
        "robot_type": "so100",
        "total_episodes": len(episodes),
        "total_frames": sum(len(e["action"]) for e in episodes),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "features": features,
        **(V3 if is_new else V2),
    }
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    rows, tables, films, begin = [], [], [], 0
    for i, episode in enumerate(episodes):
        length = len(episode["action"])
        tables.append(_table(episode, i, begin, fps, kind))
        films.append(encode_film(episode[CAMERA], fps) if kind == "video" else b"")
        rows.append({"episode_index": i, "tasks": [episode["task"]], "length": length})
        begin += length
    (_write_new if is_new else _write_old)(folder, rows, tables, films, fps)
    if stats and version == "v2.0":
        (folder / "meta/stats.json").write_text("{}")
    return episodes


def _table(episode, number, begin, fps, kind):
    steps = np.arange(len(episode["action"]))
    columns = {
        name: pyarrow.array(episode[name].tolist(), pyarrow.list_(pyarrow.float32()))
        for name in ("observation.state", "action")
    }
    if kind == "image":
        cells = [{"bytes": png(image), "path": None} for image in episode[CAMERA]]
        columns[CAMERA] = pyarrow.array(cells)
    columns |= {
        "timestamp": (steps / fps).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.full_like(steps, number),
        "index": begin + steps,
        "task_index": np.full_like(steps, TASKS.index(episode["task"])),
    }
    return pyarrow.table(columns)


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def _save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, list):
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        parquet.write_table(content, path)


def _write_old(folder, rows, tables, films, fps):
    for row, table, film in zip(rows, tables, films, strict=True):
        place = {"episode_chunk": 0, "episode_index": row["episode_index"], "video_key": CAMERA}
        _save(folder / V2["data_path"].format(**place), table)
        if film:
            _save(folder / V2["video_path"].format(**place), film)
    _save(folder / "meta/episodes.jsonl", rows)
    tasks = [{"task_index": i, "task": task} for i, task in enumerate(TASKS)]
    _save(folder / "meta/tasks.jsonl", tasks)


def _write_new(folder, rows, tables, films, fps):
    """Two episodes in the first files, the others in the second ones."""
    for file, part in enumerate((slice(0, 2), slice(2, None))):
        if not rows[part]:
            continue
        place = {"chunk_index": 0, "file_index": file}
        _save(folder / V3["data_path"].format(**place), pyarrow.concat_tables(tables[part]))
        film = None
        for row, clip in zip(rows[part], films[part], strict=True):
            row |= {f"data/{key}": number for key, number in place.items()}
            if clip:
                path = folder / V3["video_path"].format(**place, video_key=CAMERA)
                path.parent.mkdir(parents=True, exist_ok=True)
                film = film or Film(path, fps)
                row |= {f"videos/{CAMERA}/{key}": number for key, number in place.items()}
                row[f"videos/{CAMERA}/from_timestamp"] = film.num_frames / fps
                film.append(clip)
        if film:
            film.close()
    _save(folder / "meta/episodes/chunk-000/file-000.parquet", pyarrow.Table.from_pylist(rows))
    tasks = pyarrow.table({"task_index": range(len(TASKS)), "__index_level_0__": list(TASKS)})
    _save(folder / "meta/tasks.parquet", tasks)
