"""How often a hierarchy reaches its subgoals: at the terminal, in records and in films."""

import json

import pytest

from offrl import policy_from_checkpoint
from offrl.__main__ import main
from offrl.checkpoint import env_args_of
from offrl.envs.rendering import working_backend
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation import evaluate

pytestmark = pytest.mark.thorough  # the simulator that ships

SHORT = {
    "train.num_epochs": 1,
    "train.cuda": "false",
    "experiment.epoch_every_n_steps": 100,
    "experiment.rollout.n": 2,
    "experiment.rollout.horizon": 25,
    "experiment.rollout.terminate_on_success": "false",
    "experiment.render_video": "false",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short training of the config that ships."""
    runs = tmp_path_factory.mktemp("runs")
    settings = [f"--set={key}={value}" for key, value in SHORT.items()]
    output = f"--set=train.output_dir={runs}"
    assert main(["train", "--config", "hbc.json", "--name", "hbc", output, *settings]) == 0
    (run,) = (runs / "hbc").iterdir()
    return run


def test_a_training_records_subgoals(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for kind in ("rollout", "test"):
        (logs,) = [record["logs"] for record in records if record["type"] == kind]
        assert logs["Subgoals"] == 4  # those of the first 20 of 25 steps, in two episodes
        assert logs["Subgoals_Reached"] in (0, 0.25, 0.5, 0.75, 1)
        assert 0 < logs["Subgoal_Distance"] < 1
    assert ",Subgoals_Reached," in (run / "metrics.csv").read_text()


def test_an_evaluation_says_how_often_subgoals_are_reached(run, tmp_path, capsys):
    arguments = ["rollout", "--checkpoint", str(run / "last.pth"), "--n", "3", "--horizon", "12"]
    figures = []
    for workers in ("1", "2"):
        path = tmp_path / f"{workers}.json"
        assert main([*arguments, "--workers", workers, "--json", str(path)]) == 0
        figures.append(json.loads(path.read_text()))
    one, two = figures
    assert one == two and one["Subgoals"] == 3
    said = [line for line in capsys.readouterr().out.splitlines() if "subgoals" in line]
    assert (
        said[0]
        == said[1]
        == (
            f"subgoals reached {one['Subgoals_Reached']:.2f} (within 2 cm, n = 3), "
            f"least distance {100 * one['Subgoal_Distance']:.1f} cm on average"
        )
    )


@pytest.mark.skipif(working_backend() is None, reason="no rendering library on this machine")
def test_a_film_of_it_has_marks(run):
    policy, checkpoint = policy_from_checkpoint(run / "last.pth")
    with EnvPool(env_args_of(checkpoint), 1, gl_backend=working_backend()) as pool:
        request = EpisodeRequest(seed=0, horizon=1, frame_every=1)
        (result,) = evaluate(policy, pool, [request])
    assert result.error is None and len(result.frames) == 2
    for frame in result.frames:
        red, green, blue = frame.astype(int).transpose(2, 0, 1)
        assert (green - red.clip(blue) > 50).sum() > 100  # nothing else on Lift is green
