"""A folder with a page of demonstrations and runs, which any browser opens without a network.

``index.html`` and the scripts beside it are always the same; ``data/overview.js`` lists the
content. Each episode and run has a script of its own, which the page loads on demand:
``data/DATASET/EPISODE.js`` and ``data/run/RUN.js``, with their films beside them.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tqdm import tqdm

from offrl.envs.rendering import needed_backend
from offrl.outputs import whole_folder
from offrl.processes import in_order
from offrl.reports.run import is_run
from offrl.reports.view.datasets import DatasetPage, EpisodeWriter, FilmOptions
from offrl.reports.view.page import copy_assets, write_script
from offrl.reports.view.runs import RunPage
from offrl.video import encoder

__all__ = ["FilmOptions", "write_view"]


def write_view(
    paths: Sequence[str],
    output: str | Path,
    films: FilmOptions,
    num_workers: int | None = None,
    command: str = "",
) -> None:
    """Write the folder ``output`` about files of demonstrations and folders of runs.

    Episodes are written by ``num_workers`` processes (one per core), one at a time in each.

    command: the command that made the page, to show there.
    """
    runs = [RunPage(path) for path in paths if is_run(path)]
    datasets = [DatasetPage(path, films.num_rendered) for path in paths if not is_run(path)]
    episodes = [episode for i, data in enumerate(datasets) for episode in data.episodes(i)]
    with whole_folder(output) as folder:
        environ = {}
        if any(episode.is_rendered for episode in episodes):
            encoder()
            environ["MUJOCO_GL"] = needed_backend("--render")
        for i, run in enumerate(runs):
            (folder / "data/run").mkdir(parents=True, exist_ok=True)
            run.write(folder, f"data/run/{i}")
        for i in range(len(datasets)):
            (folder / f"data/{i}").mkdir(parents=True)
        done = in_order(EpisodeWriter, (str(folder), films), episodes, num_workers, environ)
        with closing(done):
            bar = tqdm(done, total=len(episodes), unit="episode", disable=None)
            summaries = list(bar) if episodes else []
        if films.cameras and not any(summary["film"] for summary in summaries):
            raise ValueError("--cameras: no data has images; film simulator states with --render N")
        written = iter(summaries)
        overview = {
            "command": command,
            "datasets": [data.describe([next(written) for _ in data.names]) for data in datasets],
            "runs": [run.describe() for run in runs],
        }
        write_script(folder / "data/overview.js", "showOverview", overview)
        copy_assets(folder)
