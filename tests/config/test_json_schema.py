"""The JSON Schema of configs says what the reader of configs says."""

import json
from functools import cache

import pytest
from conftest import GOLDEN, ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from offrl import config_factory
from offrl.config import config_from_content
from offrl.config.files import read_config_file
from offrl.config.json_schema import config_schema
from offrl.registry import ALGO_CONFIGS

SHIPPED = sorted([*(ROOT / "configs").rglob("*.json"), *(ROOT / "examples").glob("*.json")])
# Not those that other tests register.
NAMES = [n for n in ALGO_CONFIGS.names() if ALGO_CONFIGS[n].__module__[:6] == "offrl."]


@cache
def the_schema():
    return config_schema()


@cache
def validator():
    return Draft202012Validator(the_schema())


def errors(content):
    return [f"{e.json_path}: {e.message[:200]}" for e in validator().iter_errors(content)]


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def keys(node, path=()):
    """Every key of a section of the schema, the entries of lists and of maps among them."""
    for name, key in node.get("properties", {}).items():
        yield (*path, name), key
        yield from keys(key, (*path, name))
    for below in (node.get("additionalProperties"), node.get("items")):
        if isinstance(below, dict):
            yield from keys(below, (*path, "*"))
    for one in node.get("anyOf", ()):
        yield from keys(one, path)


def test_it_is_a_schema():
    Draft202012Validator.check_schema(the_schema())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_are_valid(path):
    assert errors(read_config_file(path)) == []


@pytest.mark.parametrize("name", NAMES)
def test_complete_configs_are_valid(name):
    assert errors(config_factory(name).to_dict()) == []


@pytest.mark.parametrize("name", sorted(p.stem for p in (GOLDEN / "configs").glob("*.json")))
def test_robomimics_configs_are_valid(name):
    if name not in NAMES:
        pytest.skip("an algorithm that offrl does not have")
    assert errors(json.loads((GOLDEN / f"configs/{name}.json").read_text())) == []


def common_sections():
    """The sections that all algorithms have, but for ``observation`` of hierarchies."""
    schema = the_schema()
    usual = schema["allOf"][-1]["then"]["properties"]
    sections = schema["properties"] | usual
    return {name: sections[name] for name in ("experiment", "train", "observation", "meta")}


@pytest.mark.parametrize("name", NAMES)
def test_every_key_has_a_description_and_a_default(name):
    schema = the_schema()
    for section in [schema["$defs"][name], *common_sections().values()]:
        for path, key in keys(section):
            if "properties" not in key and path[-1] != "*":  # a key, not a section
                assert key["description"], path
                is_needed = path[-1] in ("path", "wrapper")  # of an entry of a list
                assert "default" in key or is_needed, path


def test_defaults_are_those_of_the_algorithm():
    schema = the_schema()
    awac, bc = (schema["$defs"][name]["properties"] for name in ("awac", "bc"))
    assert awac["critic"]["properties"]["layer_dims"]["default"] == [256, 256]
    optim = schema["$defs"]["plas"]["properties"]["optim_params"]["properties"]["actor"]
    assert optim["properties"]["learning_rate"]["properties"]["initial"]["default"] == 1e-4
    assert bc["rnn"]["properties"]["kwargs"]["default"] == {"bidirectional": False}


@pytest.mark.parametrize(
    "content",
    [
        {"train": {"data": "a.hdf5"}},
        {"train": {"data": {"path": "a.hdf5", "lang": None}}},
        {"train": {"data": ["a.hdf5", {"path": "b.hdf5", "weight": 2}]}},
        {"train": {"data": None}},
        {"train": {"max_grad_norm": 1}},  # a whole number for a real one
        {"train": {"action_config": {"actions": {"format": None}, "other": {}}}},
        {"experiment": {"env_meta_update_dict": {"env_kwargs": {"any": ["thing"]}}}},
        {"experiment": {"save": {"every_n_epochs": None}, "rollout": {"batched": False}}},
        {"observation": {"modalities": {"obs": {"touch": ["fingers"]}}}},
        {"observation": {"encoder": {"touch": {"core_class": "my_nets.Touch"}}}},
        {"observation": {"encoder": {"rgb": {"obs_randomizer_class": ["A", "B"]}}}},
        {"observation": {"encoder": {"rgb": {"obs_randomizer_kwargs": [{"x": 1}, {}]}}}},
        {"algo": {"optim_params": {"policy": {"learning_rate": {"initial": 1}}}}},
        {"$schema": "../offrl.schema.json"},
        {},
    ],
    ids=str,
)
def test_what_the_reader_accepts_is_valid(content):
    config_from_content({"algo_name": "bc"} | content)
    assert errors({"algo_name": "bc"} | content) == []


@pytest.mark.parametrize(
    "content",
    [
        {"train": {"batchsize": 3}},
        {"batch_size": 3},
        {"train": {"batch_size": "big"}},
        {"train": {"batch_size": 2.5}},
        {"train": {"batch_size": 0}},
        {"train": {"seq_length": 100_001}},
        {"train": {"cuda": 1}},
        {"train": {"cuda": "true"}},
        {"train": {"goal_mode": "first"}},
        {"train": None},
        {"train": {"data": [{"pth": "x"}]}},
        {"train": {"data": 3}},
        {"train": {"action_keys": []}},
        {"train": {"data_format": "other"}},
        {"train": {"rewards": {"clip": [0]}}},
        {"experiment": {"rollout": {"batched": True}}},
        {"algo": {"vf_quantile": 0.9}},  # another algorithm's
        {"algo": {"vae": {"latent_dim": 0}}},
        {"algo": {"optim_params": {"policy": {"learning_rate": {"initial": -1e-4}}}}},
        {"algo": {"optim_params": {"other": {"nonsense": 1}}}},
        {"observation": {"encoder": {"rgb": {"core_clas": "x"}}}},
        {"$schema": 3},
    ],
    ids=str,
)
def test_what_the_reader_refuses_is_not_valid(content):
    with pytest.raises(ValueError):
        config_from_content({"algo_name": "bc"} | content)
    assert errors({"algo_name": "bc"} | content)


@pytest.mark.parametrize("content", [{}, {"algo_name": "bcc"}, {"algo_name": 3}], ids=str)
def test_the_algorithm_is_named_and_known(content):
    assert errors(content)


def test_the_section_of_a_users_own_algorithm_may_hold_anything():
    parts = {"planner": {"modalities": {}}}
    assert errors({"algo_name": "my_package.my_algo", "algo": {"mine": [1]}}) == []
    assert errors({"algo_name": "my_package.my_algo", "observation": parts}) == []
    assert errors({"algo_name": "hbc", "observation": parts}) == []
    assert errors({"algo_name": "bc", "observation": parts})
    assert errors({"algo_name": "my_package.my_algo", "algo": 3})
    assert errors({"algo_name": "my_package.my_algo", "trian": {}})


# -- by any value ---------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1000)
    | st.floats(-2, 1000)
    | st.sampled_from(["", "last", "all", "low_dim", "adam", "gmm", "robomimic", "default", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner, max_size=1),
    max_leaves=3,
)


def paths():
    schema = the_schema()
    for name, section in common_sections().items():
        for path, _ in keys(section, (name,)):
            yield "bc", path
    for name in NAMES:
        for path, _ in keys(schema["$defs"][name], ("algo",)):
            yield name, path


PATHS = [(name, ".".join(path)) for name, path in paths() if "*" not in path]


def has_whole_float(value):
    """1.0 is an integer in JSON, and none for the reader."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, float) and value.is_integer()) or any(map(has_whole_float, below))


def is_of_a_rule(error):
    """The reader knows rules beyond types and limits: keys that exclude each other, folders."""
    found = error.__context__
    return isinstance(found, ValidationError) and {e["type"] for e in found.errors()} == {
        "value_error"
    }


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PATHS), VALUES)
def test_the_schema_and_the_reader_agree_on_any_value(place, value):
    name, path = place
    content = {"algo_name": name} | nested(path, value)
    try:
        config_from_content(content)
    except ValueError as error:
        if not has_whole_float(value) and not is_of_a_rule(error):
            assert errors(content), f"refused by the reader alone: {error}"
    else:
        assert errors(content) == []


# -- the key $schema ------------------------------------------------------------------------------


def test_the_address_of_the_schema_reaches_no_model():
    config = config_factory("bc", {"$schema": "offrl.schema.json", "train": {"seed": 3}})
    assert config.train.seed == 3
    assert "$schema" not in config.to_dict()
    assert config == config_factory("bc", {"train": {"seed": 3}})


def test_it_is_accepted_in_files(tmp_path):
    for name, text in {
        "a.json": '{"$schema": "offrl.schema.json", "algo_name": "bc"}',
        "a.yaml": "$schema: offrl.schema.json\nalgo_name: bc\n",
    }.items():
        (tmp_path / name).write_text(text)
        assert config_from_content(read_config_file(tmp_path / name)) == config_factory("bc")


@pytest.mark.parametrize("value", [3, None, {"a": "b"}, ["x"]], ids=str)
def test_it_must_be_text(value):
    with pytest.raises(ValueError, match=r"\$schema"):
        config_factory("bc", {"$schema": value})


def test_it_is_known_at_the_top_alone():
    with pytest.raises(ValueError, match=r"train\.\$schema"):
        config_factory("bc", {"train": {"$schema": "x"}})
