"""The tables of docs/migrating name what is there."""

import json
import re

import pytest
from conftest import ROOT
from test_public_names import find

from offrl import config_factory
from offrl.registry import ALGOS

PAGES = {  # without their blocks of code
    name: re.sub("```.*?```", "", (ROOT / f"docs/migrating/{name}.md").read_text(), flags=re.S)
    for name in ("robomimic", "d3rlpy")
}
IN_D3RLPY = {
    "AWAC": "awac",
    "BCQ": "bcq",
    "Cal-QL": "cal_ql",
    "CQL": "cql",
    "CRR": "crr",
    "Decision Transformer": "dt",
    "discrete BCQ": "discrete_bcq",
    "discrete CQL": "discrete_cql",
    "IQL": "iql",
    "PLAS": "plas",
    "ReBRAC": "rebrac",
    "SAC": "sac_n",
    "TD3+BC": "td3_bc",
}


def rows(page, heading):
    """The rows of the table below a heading, as pairs of cells."""
    section = PAGES[page].split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert len(table) > 2
    return table[2:]


def quoted(text):
    return re.findall(r"`([^`]+)`", text)


def holds(content, path):
    """Whether a config has a dotted key; ``NAME`` stands for any."""
    for part in path.split("."):
        if part == "NAME":
            part = next(iter(content))
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def test_offrls_names_can_be_imported():
    for text in PAGES.values():
        names = [name for code in quoted(text) for name in re.findall(r"^offrl(?:\.\w+)+", code)]
        assert names
        for name in names:
            find(name)
    for theirs, ours in rows("robomimic", "Names of functions and classes"):
        if "the same name" in ours:
            for name in quoted(theirs):
                find(f"offrl.algos.{name.rpartition('.')[2]}")


def test_keys_of_configs_are_those_of_some_algorithm():
    configs = [config_factory(name).to_dict() for name in ALGOS.names()]
    keys = re.compile(r"^(?:algo|train|experiment|observation)(?:\.\w+)+$")
    for page, text in PAGES.items():
        named = [code for code in quoted(text) if keys.match(code)]
        gone = ("experiment.mse", "train.shuffled_obs_key_groups", "train.hdf5_normalize_actions")
        lost = [k for k in named if k not in gone and not any(holds(c, k) for c in configs)]
        assert named and not lost, (page, lost)


@pytest.mark.parametrize("row", rows("d3rlpy", "Arguments of one algorithm"), ids=lambda r: r[0])
def test_arguments_of_one_algorithm_have_their_key(row):
    theirs, ours = row
    algorithms = [IN_D3RLPY[name] for name in theirs.split(" `")[0].split(", ")]
    keys = [code for code in quoted(ours) if re.fullmatch(r"[a-z_]+(\.\w+)*", code)]
    assert keys or "always" in ours
    for algorithm in algorithms:
        section = config_factory(algorithm).to_dict()["algo"]
        assert all(holds(section, key) for key in keys), (algorithm, keys)


def test_algorithms_have_the_names_of_the_table():
    for theirs, ours in rows("d3rlpy", "Algorithms"):
        for name in quoted(ours):
            if re.fullmatch(r"\w+", name):
                assert name in ALGOS.names(), theirs


def registered(theirs):
    """What an algorithm would be called here."""
    words = re.sub(r"([a-z])([A-Z][a-z]|[A-Z]{2})", r"\1_\2", theirs.removesuffix("Config"))
    return words.lower()


def test_what_the_table_calls_missing_is_missing():
    assert (registered("DiscreteSACConfig"), registered("DDPGConfig")) == ("discrete_sac", "ddpg")
    missing = [name for theirs, ours in rows("d3rlpy", "Algorithms") if ours == "none"
               for name in quoted(theirs)]  # fmt: skip
    assert missing and not {*map(registered, missing)} & {*ALGOS.names()}


def test_the_page_of_algorithms_has_all_and_their_configs():
    page = (ROOT / "docs/reference/algorithms.md").read_text()
    table = page.split("## All algorithms\n")[1].strip().split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in table]
    assert sorted(quoted(row[0])[0] for row in cells) == ALGOS.names()
    shipped = {}
    for path in (ROOT / "configs").rglob("*.json"):
        name = json.loads(path.read_text()).get("algo_name")  # a study has none
        shipped.setdefault(name, set()).add(str(path.relative_to(ROOT / "configs")))
    for name, *_, configs, _ in cells:
        own = {x for x in quoted(configs) if not x.startswith("examples/")}
        assert own == shipped.get(quoted(name)[0], set()), name


def test_algorithms_of_offline_rl_exist():
    text = (ROOT / "docs/howto/offline_rl.md").read_text()
    table = re.search(r"^\| algorithms \|.*\n.*\n((?:\|.*\n)+)", text, flags=re.M)[1]
    named = [name for line in table.splitlines() for name in quoted(line.split("|")[1])]
    assert named and {*named} <= {*ALGOS.names()}
