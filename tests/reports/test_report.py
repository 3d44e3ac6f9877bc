"""``offrl report``: numbers, tables and pictures of what trainings reached."""

import csv
import json
import re
from dataclasses import replace
from itertools import combinations, product

import h5py
import numpy as np
import pytest
from conftest import write_demos
from PIL import Image

from offrl.__main__ import main
from offrl.reports.figures import _common_steps, _curves
from offrl.reports.report import write_report
from offrl.reports.results import Measurement, Outcome, write_results, write_rows
from offrl.reports.run import Run
from offrl.reports.scores import Scores, chance, improvement, needed_seeds
from offrl.studies.results import results_of
from offrl.studies.table import FIRST, LAST, run_of

pytest.importorskip("rliable")


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    """Of each bootstrap, of which reports make dozens."""
    monkeypatch.setattr("offrl.reports.scores.REPS", 200)


NAMES = {"curves", "scores", "aggregates", "profiles", "improvement", "time"}


def result(algorithm, task, seed, rate, **known):
    final = Measurement(rate, rate, 50)
    known = {"final": final, "best": Measurement(min(1.0, rate + 0.1), rate, 50), **known}
    curve = [(100, rate / 2, rate / 2), (200, rate, rate)]
    return Outcome(algorithm, task, seed, curve=curve, steps=200, minutes=1.0 + seed, **known)


def study(rates, num_seeds=3):
    """Results whose rates on each task are around those given for each algorithm."""
    rng = np.random.default_rng(0)
    return [
        result(algorithm, task, seed, float(np.clip(rate + 0.05 * rng.standard_normal(), 0, 1)))
        for algorithm, of_tasks in rates.items()
        for task, rate in of_tasks.items()
        for seed in range(1, num_seeds + 1)
    ]


GOOD_AND_BAD = {"good": {"Can": 0.9, "Square": 0.8}, "bad": {"Can": 0.3, "Square": 0.2}}


def test_the_probability_of_improvement_is_that_of_pairs():
    x, y = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[2.0, 5.0], [3.0, 5.0], [0.0, 5.0]])
    # On the first task 1 > 0; 3 > 2, 3 = 3, 3 > 0; on the second all are alike.
    assert improvement(x, y) == pytest.approx(((1 + 2.5) / 6 + 0.5) / 2)
    assert improvement(x, y) == pytest.approx(1 - improvement(y, x))


@pytest.mark.slow
def test_intervals_hold_the_mean_of_the_seeds_in_most_cases():
    """Of many studies of ten seeds, as often as a bootstrap of so few can."""
    rng, holds = np.random.default_rng(1), 0
    for _ in range(30):
        drawn = np.clip(rng.normal(0.5, 0.1, 10), 0, 1)
        results = [result("a", "Can", seed, rate) for seed, rate in enumerate(drawn)]
        _, low, high = Scores(results).means["a", "Can"]
        holds += low <= 0.5 <= high
    assert 24 <= holds <= 30


def test_the_interquartile_mean_is_that_of_the_middle_half():
    rates = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0]
    scores = Scores([result("a", "Can", seed, rate) for seed, rate in enumerate(rates)])
    value, low, high = scores.aggregates["a"]["interquartile mean"]
    assert value == pytest.approx(np.mean(rates[2:6])) and low < value < high
    assert scores.aggregates["a"]["mean"][0] == pytest.approx(np.mean(rates))


def test_numbers_are_the_same_every_time_and_numpys_generator_stays_as_it_was():
    before = np.random.get_state()[1].copy()
    scores = [Scores(study(GOOD_AND_BAD)) for _ in range(2)]
    assert scores[0].aggregates == scores[1].aggregates
    assert scores[0].comparisons == scores[1].comparisons
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize(
    ("num_seeds", "tasks", "verdict"),
    [
        (3, ["Can"], "too few seeds to order them"),
        (4, ["Can"], "good is better"),
        (2, ["Can", "Square"], "too few seeds to order them"),
        (3, ["Can", "Square"], "good is better"),
    ],
)
def test_few_seeds_order_nothing(num_seeds, tasks, verdict):
    """Of three and three, all orders are one of 20: p is 0.1 for the most extreme."""
    rates = {name: {task: of[task] for task in tasks} for name, of in GOOD_AND_BAD.items()}
    (comparison,) = Scores(study(rates, num_seeds)).comparisons
    assert (comparison.first, comparison.second) == ("good", "bad")
    assert comparison.verdict == verdict
    assert (num_seeds >= needed_seeds(len(tasks))) == (comparison.least_p <= 0.05)


def test_equal_scores_can_be_ordered_by_fewer_seeds():
    """All zeros are one rank, so that nothing is as far on the other side."""
    rates = {"a": [0.98, 0.98, 1], "b": [0, 0, 0, 0]}
    found = [
        result(name, "Can", seed, x) for name, of in rates.items() for seed, x in enumerate(of)
    ]
    (comparison,) = Scores(found).comparisons
    assert comparison.p == comparison.least_p == pytest.approx(1 / 35)
    assert comparison.verdict == "a is better"


@pytest.mark.filterwarnings("error")
def test_a_single_seed_has_no_interval(tmp_path):
    write_report(study(GOOD_AND_BAD, num_seeds=1), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| good \| 0\.9\d \(one seed\) \|", text)
    assert "| good | bad | 1.00 (one seed) | 0.500 | too few seeds to order them |" in text


def every_assignment(x, y):
    """The probability of improvement for each way to give the trainings to two algorithms."""
    n = len(x) + len(y)
    ways = [
        [(both[list(own)], np.delete(both, own)) for own in combinations(range(n), len(x))]
        for both in np.concatenate([x, y]).T
    ]
    for tasks in product(*ways):
        own, others = (np.stack(scores, axis=1) for scores in zip(*tasks, strict=True))
        yield improvement(own, others)


@pytest.mark.parametrize(("seeds", "tasks"), [((3, 3), 1), ((2, 4), 1), ((3, 2), 2), ((2, 2), 3)])
@pytest.mark.parametrize("digits", [5, 0])
def test_the_chance_of_a_difference_is_that_among_all_assignments(seeds, tasks, digits):
    rng = np.random.default_rng(2)
    x, y = (rng.normal(0.5 * i, 1, (n, tasks)).round(digits) for i, n in enumerate(seeds))
    found = np.abs(np.array([*every_assignment(x, y)]) - 0.5)
    expected = (found >= abs(improvement(x, y) - 0.5) - 1e-9).mean()
    assert chance(x, y) == pytest.approx(expected) == chance(y, x)


def test_of_many_algorithms_that_are_alike_none_is_better():
    """In one report of twenty at most, although the one that seems best is compared."""
    num_wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drawn = rng.normal(0.5, 0.1, (8, 2, 4)).clip(0, 1)
        results = [
            result(str(algorithm), str(task), seed, drawn[algorithm, task, seed])
            for algorithm, task, seed in np.ndindex(drawn.shape)
        ]
        chances = Scores(results).chances
        assert len(chances) == 28
        num_wrong += min(chances.values()) <= 0.05
    assert num_wrong <= 4


def test_more_algorithms_take_more_seeds():
    assert [needed_seeds(1, pairs) for pairs in (1, 6, 105)] == [4, 5, 8]
    rates = {name: {"Can": rate} for name, rate in zip("abcd", (0.9, 0.7, 0.5, 0.2), strict=True)}
    verdicts = {num: {c.verdict for c in Scores(study(rates, num)).comparisons} for num in (4, 5)}
    assert verdicts == {
        4: {"too few seeds to order them"},
        5: {f"{name} is better" for name in "abc"},
    }


@pytest.mark.slow
def test_those_that_lack_a_task_do_not_hold_up_the_others(tmp_path):
    tasks = dict.fromkeys(("Can", "Square", "Door"), 0.5)
    results = study({"a": tasks, "b": tasks, "begun": {"Can": 0.5}})
    scores = Scores(results)
    assert (scores.common, scores.compared) == (["Can", "Square", "Door"], ["a", "b"])
    write_report(results, tmp_path)
    assert "Without a result on all of them: begun." in (tmp_path / "report.md").read_text()
    results = study({"a": tasks, "b": {"Can": 0.5, "Square": 0.5}, "c": {"Can": 0.5, "Square": 1}})
    assert Scores(results).common == ["Can", "Square"]
    assert Scores(study({"a": tasks, "b": {"Can": 0.5}})).common == ["Can"]
    results = [*study({name: {"Can": 0.5} for name in "abc"}), *study({"a": {"Door": 1}}, 1)]
    results += study({"b": {"Door": 1}}, 1)  # its first seed counts for less than all of c's
    assert Scores(results).common == ["Can"]


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "names", [["_mine"], [r"a $\frac{$"], [f"iql, {'a.long_key ' * 9}{i}" for i in (1, 2)]]
)
def test_names_that_matplotlib_would_hide_or_cut_are_drawn(names, tmp_path):
    write_report(study({name: {"Can": 0.5, names[0]: 0.5} for name in names}), tmp_path)
    assert (tmp_path / "profiles.png").exists()


def test_what_is_alike_is_not_ordered():
    alike = {name: dict.fromkeys(("Can", "Square"), 0.5) for name in ("a", "b")}
    (comparison,) = Scores(study(alike, 5)).comparisons
    assert comparison.verdict == "not told apart"


def test_returns_count_where_nothing_succeeds_and_are_normalised_by_what_the_study_says():
    def hopper(algorithm, total, returns=()):
        final = Measurement(0.0, total, 50)
        return Outcome(algorithm, "Hopper", 1, final=final, best=final, returns=list(returns))

    plain = Scores([hopper("a", 100.0), hopper("b", 50.0)])
    assert plain.measures["Hopper"] == "return" and plain.of("a", "Hopper") == [100.0]
    begun = Outcome("a", "Hopper", 1, "begun", curve=[(100, 0.0, 500.0)])
    assert Scores([begun]).measures["Hopper"] == "return"
    between = Scores([hopper("a", 110.0, (10, 210)), hopper("b", 10.0, (10, 210))])
    assert between.measures["Hopper"] == "normalised return"
    assert (between.of("a", "Hopper"), between.of("b", "Hopper")) == ([50.0], [0.0])


def test_tasks_of_different_scales_are_not_averaged():
    mixed = [result("a", "Can", 1, 0.5)]
    mixed.append(Outcome("a", "Hopper", 1, final=Measurement(0.0, 900.0, 50)))
    assert not Scores(mixed).can_be_averaged


def test_on_tasks_of_different_scales_trainings_are_compared(tmp_path):
    """Which of two is better is the same in points and in shares."""
    rates = study({"good": {"Can": 0.9}, "bad": {"Can": 0.3}})
    walks = [
        replace(
            r, task="Hopper", curve=[], best=None, final=Measurement(0.0, 900 * r.final.total, 50)
        )
        for r in rates
    ]
    scores = Scores([*rates, *walks])
    (comparison,) = scores.comparisons
    assert comparison.verdict == "good is better" and scores.common == ["Can", "Hopper"]
    write_report([*rates, *walks], tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == NAMES - {"aggregates", "profiles"}
    assert "| good | bad | 1.00 (1.00 to 1.00) |" in (tmp_path / "report.md").read_text()


def test_algorithms_that_share_no_task_are_not_compared(tmp_path):
    write_report(study({"a": {"Can": 0.9}, "b": {"Square": 0.3}}), tmp_path)
    assert "none are compared" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_one_task_has_all_that_several_have_and_every_pair_is_compared(tmp_path):
    write_report(study({"a": {"Can": 0.9}, "b": {"Can": 0.5}, "c": {"Can": 0.1}}), tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == NAMES
    text = (tmp_path / "report.md").read_text()
    assert "| algorithm | interquartile mean | mean |\n" in text
    assert all(f"| {one} | {other} | 1.00" in text for one, other in combinations("abc", 2))


@pytest.mark.slow
def test_a_report_says_what_is_missing_and_why(tmp_path):
    why = "bad: the loss\nbecame NaN"
    lost = Outcome("bad", "Square", 3, "failed", why, repeat="offrl study x")
    results = [
        r for r in study(GOOD_AND_BAD) if (r.algorithm, r.task, r.seed) != ("bad", "Square", 3)
    ]
    write_report([*results, lost], tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "12 trainings of 2 algorithms on 2 tasks; 11 have a result" in text
    assert "| Square | bad (3) | failed | bad: the loss became NaN | `offrl study x` |" in text
    assert "2 of 3 x 50" in text


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_has_its_numbers_in_all_three_forms(tmp_path):
    results = study(GOOD_AND_BAD)
    results = [replace(r, commit="abcd1234", versions="torch 2.9", data="f00d") for r in results]
    write_report(results, tmp_path, "Of <cans> & squares")
    assert {path.stem for path in tmp_path.glob("*.png")} == NAMES
    for path in tmp_path.glob("*.png"):
        assert Image.open(path).convert("L").getextrema() == (0, 255)
    text, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "html"))
    value, low, high = Scores(results).means["good", "Can"]
    shown = f"{value:.2f} ({low:.2f} to {high:.2f})"
    for form in (text, page):
        assert shown in form and "abcd1234" in form and "torch 2.9" in form and "f00d" in form
    assert "<h1>Of &lt;cans&gt; &amp; squares</h1>" in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert len(re.findall("data:image/png;base64", page)) == len(NAMES)
    rows = table(tmp_path / "scores.csv")
    assert [(r["task"], r["algorithm"]) for r in rows][:2] == [("Can", "good"), ("Can", "bad")]
    assert [float(rows[0][key]) for key in ("last", "last_low", "last_high")] == [value, low, high]
    assert (rows[0]["num_seeds"], rows[0]["episodes"], rows[0]["steps"]) == ("3", "50", "200")
    mean, _, _ = Scores(results).aggregates["good"]["interquartile mean"]
    assert float(table(tmp_path / "aggregates.csv")[0]["interquartile mean"]) == mean
    (row,) = table(tmp_path / "comparisons.csv")
    assert (row["improvement"], row["verdict"]) == ("1.0", "good is better")
    rows = table(tmp_path / "report.csv")
    assert [json.loads(row["final"])["success"] for row in rows] == [
        r.final.success for r in results
    ]


def test_a_report_can_be_made_again_of_its_csv(tmp_path):
    results = [*study(GOOD_AND_BAD), Outcome("good", "Can", 9, "failed", 'a "why", with commas')]
    write_results(tmp_path / "report.csv", results)
    assert results_of([tmp_path]) == results


def test_of_trainings_that_cannot_be_told_apart_none_is_lost(tmp_path):
    for name, rate in (("a", 0.5), ("b", 0.6)):
        (tmp_path / name).mkdir()
        write_results(tmp_path / name / "report.csv", [result("bc", "Can", 1, rate)])
    assert len(results_of([tmp_path / "a", tmp_path / "a"])) == 1
    with pytest.raises(ValueError, match="bc .*Can .*1: .*/a .*/b"):
        results_of([tmp_path / "a", tmp_path / "b"])


def reports_of(folder, *results):
    """A report of each, in a folder of its own."""
    for number, result in enumerate(results):
        (folder / str(number)).mkdir()
        write_results(folder / str(number) / "report.csv", [result])
    return [folder / str(number) for number in range(len(results))]


def test_of_a_training_and_what_is_known_less_of_it_the_training_counts(tmp_path):
    """As of a study whose cells run on two machines."""
    done = result("bc", "Can", 1, 0.5)
    known = [Outcome("bc", "Can", 1, "waiting"), Outcome("bc", "Can", 1, "begun", steps=9), done]
    folders = reports_of(tmp_path, *known)
    assert results_of(folders) == results_of(folders[::-1]) == [done]


@pytest.mark.parametrize("unlike", [{"data": "beef"}, {"steps": 400}])
def test_no_mean_is_taken_of_trainings_that_differ_in_more_than_their_seeds(tmp_path, unlike):
    one = replace(result("bc", "Can", 1, 0.5), data="f00d", repeat="offrl study a.yaml")
    (what,) = unlike
    with pytest.raises(ValueError, match=f"bc .*Can .* {what} .*offrl study a.yaml"):
        results_of(reports_of(tmp_path, one, replace(one, seed=2, **unlike)))


@pytest.mark.slow
def test_algorithms_of_a_task_that_had_other_data_are_named(tmp_path):
    same = [replace(r, data="aa") for r in study(GOOD_AND_BAD)]
    unlike = [replace(r, data="bb") if (r.algorithm, r.task) == ("bad", "Can") else r for r in same]
    for name, results in ("same", same), ("unlike", unlike):
        (tmp_path / name).mkdir()
        write_report(results, tmp_path / name, name)
    said = "**Not all algorithms on Can have the same data**: aa: good; bb: bad."
    assert said in (tmp_path / "unlike" / "report.md").read_text()
    assert "the same data" not in (tmp_path / "same" / "report.md").read_text()


@pytest.mark.parametrize(("name", "content"), [("report.csv", "a,b\n1"), ("study.csv", "a")])
def test_a_damaged_table_is_said(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name} .* seed, status"):
        results_of([tmp_path])


@pytest.mark.parametrize("damage", [{"seed": "1.5"}, {"seed": "1", "returns": "{"}])
def test_a_damaged_row_of_a_study_is_said(tmp_path, damage):
    write_rows(tmp_path / "study.csv", [{"cell": "a", **damage}], [*FIRST, *LAST])
    with pytest.raises(ValueError, match="study.csv is damaged at a"):
        results_of([tmp_path])


def test_a_folder_in_the_place_of_a_table_is_no_study(tmp_path):
    (tmp_path / "study.csv").mkdir()
    with pytest.raises(FileNotFoundError, match="neither a run folder"):
        results_of([tmp_path])


@pytest.mark.parametrize("point", [(1, 0.5), ("a", 0.5, 0.5), (1, None, None)])
def test_a_damaged_curve_is_said(tmp_path, point):
    damaged = replace(result("a", "Can", 1, 0.5), curve=[point])
    write_results(tmp_path / "report.csv", [damaged])
    with pytest.raises(ValueError, match="report.csv is damaged"):
        results_of([tmp_path])


@pytest.mark.slow
def test_runs_by_themselves_are_reported(tmp_path, small_config, capsys):
    from offrl.training import train

    for seed in (1, 2):
        train(small_config({"train": {"seed": seed}}))
    runs, own_parts = str(tmp_path / "runs"), tmp_path / "runs" / "own"
    own_parts.mkdir()
    (own_parts / "config-1.json").write_text('{"alg_para": {"alg_name": "Mine"}}')
    (tmp_path / "report").mkdir()
    assert main(["report", runs, "--output", str(tmp_path / "report"), "--title", "Mine"]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.startswith("# Mine") and "2 trainings of 1 algorithm on 1 task" in text
    assert "no training has been evaluated" in text  # there was no simulator
    assert f"{own_parts} is left out: a run of a user's own parts" in capsys.readouterr().err
    with pytest.raises(ValueError, match="own: .*metrics.jsonl"):
        results_of([own_parts])
    assert main(["report", runs, "--output", str(tmp_path / "report")]) == 1
    assert "exists; choose another name" in capsys.readouterr().err


@pytest.mark.slow
def test_data_of_one_name_that_is_not_the_same_is_called_by_its_folder(tmp_path, small_config):
    """robomimic calls the files of all tasks alike."""
    from offrl.training import train

    places = {"can": 1, "lift": 2, "moved/lift": 2}  # where lies which data
    for seed, (place, content) in enumerate(places.items()):
        (tmp_path / place).mkdir(parents=True)
        data = str(write_demos(tmp_path / place / "low_dim.hdf5", seed=content))
        train(small_config({"train": {"seed": seed, "data": data}}))
    found = sorted((r.seed, r.task) for r in results_of([tmp_path / "runs"]))
    assert found == [(0, "can/low_dim"), (1, "lift/low_dim"), (2, "lift/low_dim")]


def test_a_training_ends_with_its_last_epoch_where_nothing_is_evaluated(small_config):
    """Not where a kill met it before the evaluation of that epoch."""
    from offrl.training import train

    run = train(small_config()).run
    assert Run(run.path).is_finished
    lines = run.metrics.read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["type"] == "epoch"
    run.metrics.write_text("".join(lines[:-1]))
    assert Run(run.path).done_of == (15, 15) and not Run(run.path).is_finished


def run_folder(path, *kinds, crashed=0):
    """A run folder of one epoch, with such records in its log."""
    path.mkdir(parents=True, exist_ok=True)
    experiment = {"rollout": {"enabled": True}, "epoch_every_n_steps": 5}
    config = {"experiment": experiment, "train": {"num_epochs": 1}}
    (path / "config-1.json").write_text(json.dumps(config))
    logs = {"Success_Rate": 1.0, "Return": 1.0, "Crashed": crashed}
    lines = [
        json.dumps({"type": kind, "epoch": 1, "step": 5, "time": i, "logs": logs})
        for i, kind in enumerate(kinds)
    ]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_training_without_evaluations_meanwhile_ends_with_its_test(tmp_path):
    """As one does whose first evaluation is due after its end."""
    assert Run(run_folder(tmp_path, "epoch", "test")).is_finished


def test_evaluations_that_lost_episodes_count_for_nothing(tmp_path):
    assert len(Run(run_folder(tmp_path / "whole", "rollout")).evaluations) == 1
    assert Run(run_folder(tmp_path / "lost", "rollout", crashed=1)).evaluations == []


def test_of_a_cell_that_was_trained_anew_a_finished_run_counts_and_else_the_newest(tmp_path):
    run_folder(tmp_path / "1", "epoch", "rollout")
    newest = run_folder(tmp_path / "2", "epoch", "rollout")
    assert run_of(tmp_path) == newest
    finished = run_folder(tmp_path / "1", "epoch", "rollout", "test")
    assert run_of(tmp_path) == finished


def test_a_folder_without_results_is_said(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "report")]) == 1
    assert "neither a run folder" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_where_no_success_is_reported_a_report_is_of_returns(tmp_path):
    """All returns may be 0, and one success makes the others failures."""
    silent = [
        replace(
            result("a", "Pole", seed, 0.0),
            final=Measurement(None, total, 50),
            best=None,
            curve=[(100, None, total)],
        )
        for seed, total in ((1, 0.0), (2, 0.0))
    ]
    assert Scores(silent).measures == {"Pole": "return"}
    write_report(silent, tmp_path)
    assert "success" not in (tmp_path / "report.md").read_text().split("## Final scores")[0]
    assert "| a | 0.00 (0.00 to 0.00) | - |" in (tmp_path / "report.md").read_text()
    assert [r.final for r in results_of([tmp_path])] == [r.final for r in silent]
    spoken = [*silent, result("a", "Pole", 3, 1.0)]
    assert Scores(spoken).measures == {"Pole": "success rate"}
    assert Scores(spoken).of("a", "Pole") == [0.0, 0.0, 1.0]


@pytest.mark.slow
def test_where_none_is_reported_there_is_none_anywhere(tmp_path, capsys):
    train = {"num_steps": 32, "batch_size": 16, "cuda": False, "output_dir": str(tmp_path)}
    train["online"] = {"num_envs": 2, "collect_steps": 16}
    rollout = {"n": 2, "num_workers": 1, "horizon": 30}
    experiment = {"name": "pole", "env": "CartPole-v1", "rollout": rollout, "render_video": False}
    config = {"algo_name": "ppo", "train": train, "experiment": experiment}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["train", "--config", str(tmp_path / "config.json")]) == 0
    (run,) = tmp_path.glob("pole/2*")
    (checkpoint,) = run.glob("models/*.pth")
    record = tmp_path / "demos.hdf5"
    figures = tmp_path / "figures.json"
    options = ["--n", "1", "--workers", "1", "--json", str(figures), "--record", str(record)]
    assert main(["rollout", "--checkpoint", str(checkpoint), *options]) == 0
    for path in (run, checkpoint, record):
        assert main(["info", str(path)]) == 0
    assert main(["report", str(run), "--output", str(tmp_path / "report")]) == 0
    said = capsys.readouterr().out
    assert "result:         return " in said and "best evaluation:    return " in said
    written = [run / "metrics.jsonl", run / "metrics.csv", run / "logs/log.txt", figures]
    for text in (said, *(path.read_text() for path in written)):
        assert "success" not in text.lower().replace("on_best_rollout_success_rate", "")
    with h5py.File(record) as file:
        assert "success" not in file["data/demo_0"].attrs


def test_curves_are_means_on_common_steps():
    """Seeds on one line, evaluated at different steps, have that line for mean; before, the mean
    at each step was of those seeds alone that were evaluated there."""
    curves = {1: [0, 100, 200, 300], 2: [10, 90, 210, 290], 3: [0, 50, 250, 310]}
    seeds = [
        replace(result("a", "Can", seed, 0.0), curve=[(x, x / 310 + seed / 9, 0.0) for x in steps])
        for seed, steps in curves.items()
    ]
    begun = replace(seeds[0], seed=4, curve=[(5, 0.9, 0.0)], status="begun", final=None, best=None)
    figure = _curves(Scores([*seeds, begun]))
    (line,) = figure.axes[0].lines
    steps, means = line.get_data()
    assert [*steps] == [10, 50, 90, 100, 200, 210, 250, 290]
    np.testing.assert_allclose(means, steps / 310 + 2 / 9)
    apart = [replace(seed, curve=seed.curve[:1]) for seed in seeds]  # one evaluation each
    assert _common_steps(Scores(apart), apart)[0] == [10]
    assert _common_steps(Scores([begun]), [begun])[0] == [5]
