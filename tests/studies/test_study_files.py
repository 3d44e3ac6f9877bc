"""Study files and the cells that they stand for."""

import json
from itertools import product

import pytest
import yaml
from conftest import GOLDEN, write_demos
from hypothesis import given
from hypothesis import strategies as st

from offrl.config import config_from_content
from offrl.studies.cells import Plan, SearchResult
from offrl.studies.config import StudyConfig, read_study
from offrl.tree import short_key


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_demos(tmp_path / "can.hdf5")
    return tmp_path


def write(folder, **content):
    path = folder / "study.yaml"
    path.write_text(yaml.dump({"output": "studies/x", "configs": ["bc.json"], **content}))
    return path


def test_the_study_of_the_issue_stands_for_a_cell_of_each_combination(folder):
    path = folder / "study.yaml"
    path.write_text(
        "name: can\n"
        "output: studies/can\n"
        "configs: [bc.json, bc_gmm.json]\n"
        "datasets: [can.hdf5]\n"
        "seeds: [1, 2, 3]\n"
        "set: {train.num_epochs: 200}          # for every cell\n"
        "grid: {train.batch_size: [100, 256]}  # one cell for each\n"
    )
    cells = Plan(read_study(path), folder).cells()
    assert [cell.name for cell in cells][:4] == [
        "bc-can-batch_size_100-seed_1",
        "bc-can-batch_size_100-seed_2",
        "bc-can-batch_size_100-seed_3",
        "bc-can-batch_size_256-seed_1",
    ]
    assert len(cells) == 12 and not any(cell.problem for cell in cells)
    for cell in cells:
        train = cell.content["train"]
        assert train["num_epochs"] == 200 and train["seed"] == cell.seed
        assert train["batch_size"] == cell.settings["train.batch_size"]
        assert train["data"] == "can.hdf5" and train["output_dir"] == "studies/can"
        assert cell.content["experiment"]["name"] == cell.name


LOW = "search.space.bc.k.range: low (2) is not below high (1)"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seed": [1]}, "seed: unknown key. Did you mean seeds?"),
        ({"configs": []}, "configs: "),
        ({"configs": "bc.json"}, "configs: a list is needed, such as [a, b], not 'bc.json'"),
        ({"seeds": [-1]}, "seeds.0: "),
        ({"grid": {"train.batch_size": 3}}, "grid.train.batch_size: "),
        ({"configs": [["bc.json"]]}, "configs.0: a map is needed, such as {key: value}, not ["),
        (
            {"datasets": [{"path": "x.hdf5", "colect": ""}]},
            "datasets.0.colect: unknown key. Did you mean datasets.0.collect?",
        ),
        (
            {"search": {"dataset": {"path": "x", "sets": {}}, "space": {}}},
            "search.dataset.sets: unknown key. Did you mean search.dataset.set?",
        ),
        ({"search": {"dataset": "can.hdf5"}}, "search.space: "),
        ({"search": {"dataset": "x", "space": {"bc": {"k": {"low": 2, "high": 1}}}}}, LOW),
        ({"search": {"dataset": "x", "space": {"bc": {"k": 3}}}}, "search.space.bc.k.values: "),
        ({"set": {"train.seed": 3}}, "set.train.seed: name seeds in the study"),
        ({"grid": {"train.data": ["a"]}, "datasets": ["b"]}, "grid.train.data: name all data in"),
        ({"configs": [{"config": "*.json", "name": "a"}]}, "configs.0: name: '*.json' may be"),
        ({"grid": {"train.seed": [3, 4]}}, "grid.train.seed: name seeds in the study"),
        ({"algo_name": "bc"}, "this is the config of one training, which offrl train takes"),
    ],
)
def test_a_wrong_key_is_named_by_its_path(folder, wrong, says):
    path = write(folder, **wrong)
    with pytest.raises(ValueError) as error:
        read_study(path)
    assert str(error.value).startswith(f"{path}: {says}")


def test_a_config_beside_the_study_comes_before_one_that_ships(folder):
    (folder / "bc.json").write_text(json.dumps({"algo_name": "bc", "train": {"batch_size": 7}}))
    cells = Plan(read_study(write(folder, configs=["bc.json", "iql.json"])), folder).cells()
    assert cells[0].content["train"]["batch_size"] == 7
    assert cells[1].content["algo_name"] == "iql"


def test_what_cannot_be_found_is_the_problem_of_its_cells_alone(folder):
    study = read_study(
        write(folder, configs=["bc.json", "b.json"], datasets=["can.hdf5", "c.hdf5"])
    )
    problems = {(cell.config, cell.dataset): cell.problem for cell in Plan(study, folder).cells()}
    assert problems[("bc", "can")] == ""
    assert "c.hdf5: no such file" in problems[("bc", "c")]
    assert "b.json: no such file" in problems[("b", "can")]


def test_data_may_be_a_folder_beside_the_study_or_in_the_working_folder(folder):
    (folder / "studies").mkdir()
    (folder / "minari").mkdir()
    (cell,) = Plan(read_study(write(folder, datasets=["minari"])), folder / "studies").cells()
    assert (cell.problem, cell.content["train"]["data"]) == ("", "minari")


def test_settings_are_laid_over_each_other_from_the_general_to_the_special(folder):
    study = read_study(
        write(
            folder,
            set={"train.batch_size": 1, "train.num_epochs": 1, "train.seq_length": 1},
            configs=[{"config": "bc.json", "name": "mine", "set": {"train.num_epochs": 2}}],
            datasets=[{"path": "can.hdf5", "name": "a can", "set": {"train.batch_size": 3}}],
            grid={"train.seq_length": [4]},
        )
    )
    found = {"mine": SearchResult({"train.num_epochs": 5})}
    (cell,) = Plan(study, folder).cells(found)
    train = cell.content["train"]
    assert (train["batch_size"], train["num_epochs"], train["seq_length"]) == (3, 5, 4)
    assert (cell.config, cell.dataset) == ("mine", "a can")
    assert cell.name.startswith("mine-a_can-seq_length_4-seed_1-")  # with a digest of the space


def test_options_of_the_data_go_with_its_file(folder):
    settings = {"train.data.top_share": 0.3, "train.data.filter_key": "train"}
    study = read_study(write(folder, datasets=["can.hdf5"], set=settings))
    (cell,) = Plan(study, folder).cells()
    data = {"path": "can.hdf5", "top_share": 0.3, "filter_key": "train"}
    assert cell.content["train"]["data"] == [data]


def test_a_long_name_of_large_letters_is_cut(folder):
    configs = [{"config": "bc.json", "name": letter * 100} for letter in "漢字"]
    names = [cell.name for cell in Plan(read_study(write(folder, configs=configs)), folder).cells()]
    assert len({*names}) == 2 and all(len(name.encode()) < 130 for name in names)


@pytest.mark.parametrize(
    ("key", "others", "short"),
    [
        ("train.batch_size", ["train.seq_length"], "batch_size"),
        ("algo.optim_params.policy.learning_rate.initial", [], "learning_rate.initial"),
        ("algo.optim_params.actor.learning_rate.initial", ["b.critic.learning_rate.initial"], None),
        ("algo.rnn.enabled", ["algo.gmm.enabled"], "rnn.enabled"),
        ("n", ["a.n"], "n"),
    ],
)
def test_a_key_is_called_by_the_end_that_tells_it_from_others(key, others, short):
    assert short_key(key, [key, *others]) == (short or "actor.learning_rate.initial")


def test_two_cells_of_one_name_are_refused_and_the_same_cell_is_there_once(folder):
    twice = read_study(write(folder, configs=["bc.json", "bc.json"], seeds=[1, 1]))
    assert len(Plan(twice, folder).cells()) == 1
    differing = {"config": "bc.json", "set": {"train.batch_size": 3}}
    with pytest.raises(ValueError, match="bc-seed_1"):
        Plan(read_study(write(folder, configs=["bc.json", differing])), folder).cells()


def test_configs_of_the_working_folder_are_not_those_beside_the_study(folder):
    """The same study trains the same from wherever it is called."""
    (folder / "studies").mkdir()
    (folder / "bc.json").write_text(json.dumps({"algo_name": "bc", "train": {"batch_size": 7}}))
    (cell,) = Plan(read_study(write(folder, configs=["bc.json"])), folder / "studies").cells()
    assert "batch_size" not in cell.content["train"]
    with pytest.raises(FileNotFoundError, match="b.*json"):
        Plan(read_study(write(folder, configs=["b.*json"])), folder / "studies").cells()


def test_seeds_are_those_of_the_configs_if_the_study_names_none(folder):
    for seed in (101, 102):
        content = {"algo_name": "bc", "train": {"seed": seed}}
        (folder / f"scan_{seed}.json").write_text(json.dumps(content))
    cells = Plan(read_study(write(folder, configs=["scan_*.json", "bc.json"])), folder).cells()
    assert [cell.name for cell in cells] == [
        "scan_101-seed_101",
        "scan_102-seed_102",
        "bc-seed_1",
    ]
    assert [cell.content["train"]["seed"] for cell in cells] == [101, 102, 1]
    with pytest.raises(ValueError, match=r"train.seed"):
        Plan(read_study(write(folder, configs=["scan_*.json"], seeds=[1, 2])), folder).cells()


def write_scan(folder, **scanned):
    """What robomimic's generator writes: a whole config for each setting, beside the one that it
    varies, with the setting in ``meta``."""
    folder.mkdir(exist_ok=True)
    (folder / "base.json").write_text(json.dumps({"algo_name": "bc"}))
    for values in product(*scanned.values()):
        chosen = dict(zip(scanned, values, strict=True))
        meta = {"hp_base_config_file": "/far/base.json", "hp_keys": [*chosen], "hp_values": values}
        keys = {"bs": "batch_size", "seed": "seed"}
        train = {keys[name]: value for name, value in chosen.items()}
        name = "_".join(f"{key}_{value}" for key, value in chosen.items())
        content = {"algo_name": "bc", "train": train, "meta": meta}
        (folder / f"base_{name}.json").write_text(json.dumps(content))


def test_scans_of_robomimic_tell_what_they_scan(folder):
    write_scan(folder / "scan", bs=[64, 128])
    cells = Plan(read_study(write(folder, configs=["scan/*.json"])), folder).cells()
    assert [dict(cell.settings) for cell in cells] == [{"bs": 128}, {"bs": 64}]
    assert [cell.content["train"]["batch_size"] for cell in cells] == [128, 64]
    assert [cell.config for cell in cells] == ["base", "base"], "and not what they vary"
    (base,) = Plan(read_study(write(folder, configs=["scan/base.json"])), folder).cells()
    assert base.config == "base" and not base.settings


def test_a_config_that_names_itself_as_its_base_is_trained(folder):
    for name in "ab":
        meta = {"hp_base_config_file": f"{name}.json"}
        (folder / f"{name}.json").write_text(json.dumps({"algo_name": "bc", "meta": meta}))
    cells = Plan(read_study(write(folder, configs=["[ab]*.json"])), folder).cells()
    assert [cell.name for cell in cells] == ["a-seed_1", "b-seed_1"]


def test_the_seeds_of_a_scan_are_seeds(folder):
    write_scan(folder / "scan", bs=[64], seed=[101, 102])
    cells = Plan(read_study(write(folder, configs=["scan/*.json"])), folder).cells()
    assert [(cell.config, dict(cell.settings), cell.seed) for cell in cells] == [
        ("base", {"bs": 64}, 101),
        ("base", {"bs": 64}, 102),
    ]
    assert [cell.name for cell in cells] == [f"base_bs_64_seed_{s}-seed_{s}" for s in (101, 102)]
    alone = write(folder, configs=["scan/base_bs_64_seed_102.json"], seeds=[1])
    with pytest.raises(ValueError, match="train.seed"):
        Plan(read_study(alone), folder).cells()


def test_what_a_training_is_of_is_known_without_datasets(folder):
    data = {"algo_name": "bc", "train": {"data": [{"path": "far/low_dim.hdf5"}]}}
    act = {"algo_name": "sac", "experiment": {"env": "Hopper-v5"}}
    for name, content in (("data", data), ("act", act)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    cells = Plan(read_study(write(folder, configs=["data.json", "act.json"])), folder).cells()
    assert [cell.dataset for cell in cells] == ["low_dim", "Hopper-v5"]


def test_a_file_of_robomimics_stays_one_and_one_of_offrls_too(folder, caplog):
    """Whatever a study sets: whether padded steps count is what the file says."""
    theirs = json.loads((GOLDEN / "configs" / "bc.json").read_text())
    few = {"algo_name": "bc", "train": {"batch_size": 4}}
    for name, content in (("theirs", theirs), ("ours", few)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    named = ("data", "seed", "output_dir")
    settings = {"train": {k: v for k, v in theirs["train"].items() if k not in named}}
    study = write(folder, configs=["theirs.json", "ours.json"], set=settings)
    found = {
        cell.config: config_from_content(cell.content).train.mask_padded_steps
        for cell in Plan(read_study(study), folder).cells()
    }
    assert found == {"theirs": False, "ours": True}
    assert not caplog.records


def test_a_trial_of_a_search_is_a_training_on_other_data(folder):
    write_demos(folder / "lift.hdf5")
    search = {
        "dataset": {"path": "lift.hdf5", "set": {"train.num_epochs": 9}},
        "seed": 5,
        "space": {"bc": {"train.batch_size": [1, 2]}},
    }
    study = read_study(write(folder, datasets=["can.hdf5"], search=search))
    plan = Plan(study, folder)
    cell = plan.trial(plan.searched["bc"], 3, {"train.batch_size": 2})
    train = cell.content["train"]
    assert (train["data"], train["seed"], train["num_epochs"]) == ("lift.hdf5", 5, 9)
    assert (cell.name, train["batch_size"]) == ("search/bc-trial_3", 2)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)


@given(
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    sizes=st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
    rates=st.lists(st.floats(1e-6, 1), min_size=1, max_size=3, unique=True),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
def test_every_combination_has_a_folder_of_its_own(tmp_path_factory, names, sizes, rates, seeds):
    study = StudyConfig(
        output="x",
        configs=[{"config": "bc.json", "name": name} for name in names],
        seeds=seeds,
        grid={"train.batch_size": sizes, "algo.optim_params.policy.learning_rate.initial": rates},
    )
    cells = Plan(study, tmp_path_factory.getbasetemp()).cells()
    assert len({cell.name for cell in cells}) == len(cells)
    found = [(c.config, *c.settings.values(), c.seed) for c in cells]
    assert found == [*product(names, sizes, rates, seeds)]
    assert all("/" not in cell.name and len(cell.name) < 200 for cell in cells)
