import importlib
import json
from typing import get_args

import pytest
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from offrl import config_factory
from offrl.config import AlgoConfig, Config, Section, config_from_content
from offrl.config.files import find_config, nested, parse_override, read_config_file
from offrl.config.section import descriptions_of
from offrl.registry import ALGO_CONFIGS


def leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def test_a_key_whose_default_another_section_changes_keeps_its_limits():
    for name in ALGO_CONFIGS.names():
        section = type(config_factory(name).algo)
        for base in section.__mro__[1:]:
            for key, field in getattr(base, "model_fields", {}).items():
                own = section.model_fields[key]
                if own.annotation == field.annotation:
                    assert own.metadata == field.metadata, (section.__name__, key)


def test_defaults_are_robomimics():
    recorded = json.loads((GOLDEN / "configs/bc.json").read_text())
    recorded["train"] |= {
        "output_dir": "runs",
        "hdf5_cache_mode": "auto",  # batches are those of "all"
        "num_data_workers": None,
    }
    ours = dict(leaves(config_factory("bc").to_dict()))
    for path, value in leaves(recorded):
        assert ours[path] == value, ".".join(path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train": {"batchsize": 3}}, ["train.batchsize", "unknown", "train.batch_size"]),
        ({"batch_size": 3}, ["batch_size", "unknown", "train.batch_size"]),
        ({"train": {"batch_size": "big"}}, ["train.batch_size", "integer", "'big'"]),
        ({"train": {"batch_size": 2.5}}, ["train.batch_size", "integer"]),
        ({"train": {"cuda": 1}}, ["train.cuda", "boolean"]),
        ({"train": {"goal_mode": "first"}}, ["train.goal_mode", "'last'", "'first'"]),
        ({"train": 3}, ["train", "a map is needed"]),
        ({"train": {"data": [{"pth": "x"}]}}, ["train.data.0.path", "train.data.0.pth"]),
        (
            {"train": {"action_config": {"actions": {"normalization": "max"}}}},
            ["train.action_config.actions.normalization", "'min_max'", "'gaussian'"],
        ),
        (
            {"algo": {"gaussian": {"enabled": True}, "gmm": {"enabled": True}}},
            ["algo.gaussian.enabled", "algo.gmm.enabled", "enable one"],
        ),
        (
            {"observation": {"encoder": {"rgb": {"core_clas": "x"}}}},
            ["observation.encoder.rgb.core_clas", "core_class"],
        ),
    ],
)
def test_mistakes_are_named(overrides, words):
    with pytest.raises(ValueError) as error:
        config_factory("bc", overrides)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_algorithm_names_the_known_ones():
    with pytest.raises(ValueError, match="'bcc'.*'bc.?'.* bc,"):
        config_factory("bcc")


def test_assignment_is_checked_too():
    config = config_factory("bc")
    config.train.batch_size = 7
    assert config.train.batch_size == 7
    with pytest.raises(ValueError):
        config.train.batch_size = "7"


def test_a_path_is_short_for_a_list_of_datasets():
    config = config_factory("bc", {"train": {"data": "a.hdf5"}})
    assert [entry.path for entry in config.train.data] == ["a.hdf5"]


def test_free_maps_have_attributes():
    kwargs = {"feature_dimension": 64, "pool": {"kind": "mean"}}
    config = config_factory("bc", {"observation": {"encoder": {"rgb": {"core_kwargs": kwargs}}}})
    core = config.observation.encoder["rgb"].core_kwargs
    assert core.feature_dimension == 64 and core.pool.kind == "mean"
    assert "pool" in core and "nonsense" not in core


def test_validate_is_an_ordinary_key():
    assert config_factory("bc", {"experiment": {"validate": True}}).experiment.validate is True


def test_a_dump_reads_back(tmp_path):
    config = config_factory("bc", {"train": {"data": "a.hdf5", "seed": 5}})
    assert config_factory("bc", json.loads(config.dump())) == config


def test_algorithms_set_defaults_of_other_sections():
    class WithDefaults(AlgoConfig):
        ALGO_NAME = "with_defaults"
        DEFAULTS = {"train": {"batch_size": 1024}}

    assert config_factory("with_defaults").train.batch_size == 1024
    assert config_factory("with_defaults", {"train": {"batch_size": 1}}).train.batch_size == 1


def test_yaml_numbers_are_numbers(tmp_path):
    path = tmp_path / "bc.yaml"
    path.write_text(
        "algo_name: bc\n"
        "algo: {optim_params: {policy: {learning_rate: {initial: 1e-3, decay_factor: 1.5E+2}}}}\n"
        "experiment: {name: 1e5_model}\n"
    )
    config = config_factory("bc", read_config_file(path))
    assert config.algo.optim_params["policy"].learning_rate.initial == 1e-3
    assert config.algo.optim_params["policy"].learning_rate.decay_factor == 150.0
    assert config.experiment.name == "1e5_model"


def test_a_broken_file_is_named(tmp_path):
    path = tmp_path / "bc.json"
    path.write_text('{"algo_name": "bc",}')
    with pytest.raises(ValueError, match="bc.json"):
        read_config_file(path)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.text("abcdefgh_", min_size=1, max_size=8), min_size=1, max_size=4), JSON_VALUES)
def test_overrides_are_read_as_json(path, value):
    nested = parse_override(f"{'.'.join(path)}={json.dumps(value)}")
    for part in path:
        nested = nested[part]
    assert nested == value


def test_lists_in_overrides_need_no_quotes():
    assert parse_override("modules=[mine, 3]") == {"modules": ["mine", 3]}
    assert parse_override("env_info={name: Cart, id: 3}") == {"env_info": {"name": "Cart", "id": 3}}
    with pytest.raises(ValueError, match=r"--set .*\[mine"):
        parse_override("modules=[mine")


def test_override_values_that_are_no_json_are_text():
    assert parse_override("experiment.name=my run") == {"experiment": {"name": "my run"}}
    with pytest.raises(ValueError, match="--set train.batch_size"):
        parse_override("train.batch_size")


@given(
    batch_size=st.integers(1, 10**6),
    learning_rate=st.floats(0, 1),
    dims=st.lists(st.integers(1, 4096), max_size=4),
)
def test_any_allowed_value_survives_a_dump(batch_size, learning_rate, dims):
    overrides = {
        "train": {"batch_size": batch_size},
        "algo": {
            "actor_layer_dims": dims,
            "optim_params": {"policy": {"learning_rate": {"initial": learning_rate}}},
        },
    }
    again = config_factory("bc", json.loads(config_factory("bc", overrides).dump()))
    assert again.train.batch_size == batch_size
    assert again.algo.actor_layer_dims == dims
    assert again.algo.optim_params["policy"].learning_rate.initial == learning_rate


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("algo.transformer.num_heads", 0),
        ("algo.actor_layer_dims", [-1]),
        ("algo.vae.latent_dim", 0),
        ("algo.rnn.kwargs", {"proj_size": 3}),
        ("train.action_keys", []),
        ("train.action_config.actions.format", "rot_7d"),
    ],
)
def test_numbers_that_make_no_network_are_refused(path, value):
    overrides = value
    for key in reversed(path.split(".")):
        overrides = {key: overrides}
    with pytest.raises(ValueError, match=path):
        config_factory("bc", overrides)


@pytest.mark.parametrize(
    ("algo", "path", "value"),
    [
        ("xql", "algo.vf_quantile", 0.7),
        ("plas", "algo.action_sampler.vae.enabled", False),
        ("plas", "algo.action_sampler.vae.enabled", 1),
        ("plas", "algo.action_sampler.vae.latent_clip", 1.0),
    ],
)
def test_keys_without_effect_are_refused(algo, path, value):
    overrides = value
    for key in reversed(path.split(".")):
        overrides = {key: overrides}
    with pytest.raises(ValueError, match=path):
        config_factory(algo, overrides)


@pytest.mark.parametrize(
    ("algo", "path", "meant"),
    [
        ("iql", "train.gamma", "algo.discount"),
        ("iql", "gamma", "algo.discount"),
        ("bc", "train.gamma", "bc has no discount"),
        ("bc", "algo.lr", "algo.optim_params.policy.learning_rate.initial"),
        ("iql", "train.actor_lr", "algo.optim_params.actor.learning_rate.initial"),
        ("iql", "algo.batch_size", "train.batch_size"),
        ("sac", "num_steps", "train.num_steps"),
        ("sac", "algo.tau", "algo.target_tau"),
        ("sac", "train.online.buffer_size", "train.online.replay.capacity"),
        ("bc", "algo.hidden_sizes", "algo.actor_layer_dims"),
        ("iql", "algo.hidden_dims", "algo.actor.layer_dims"),
        ("ppo", "algo.net_arch", "algo.policy_layer_dims"),
        ("diffusion_policy", "algo.n_action_steps", "algo.horizon.action_horizon"),
        ("iql", "train.discuont", "algo.discount"),
        ("xql", "algo.vf_quantile", "iql"),
    ],
)
def test_a_hint_looks_in_the_whole_config_and_knows_others_words(algo, path, meant):
    with pytest.raises(ValueError, match=f"{path}: .*{meant}"):
        config_factory(algo, nested(path, 0.5))


def test_a_section_of_another_algorithm_is_one_message():
    content = json.loads((GOLDEN / "configs/bc.json").read_text())["algo"]
    with pytest.raises(ValueError, match=r"algo\.loss, .*algo\.rnn.* bc, .*algo_name") as error:
        config_factory("iql", {"algo": content})
    assert "Known here" not in str(error.value)
    content = json.loads((GOLDEN / "configs/cql.json").read_text())["algo"]
    with pytest.raises(ValueError, match=r"algo\.critic\.cql_weight.* cql") as error:
        config_factory("td3_bc", {"algo": content})
    assert "Known here" not in str(error.value)
    unknown = {"algo": {"first": 1, "second": 2}}
    with pytest.raises(ValueError, match=r"algo\.first, algo\.second: .*Known here") as error:
        config_factory("iql", unknown)
    assert str(error.value).count("Known here") == 1


def test_unknown_keys_are_left_out_if_the_user_says_so(caplog):
    unknown = {
        "algo_name": "bc",
        "algo": {"dyn": {"hidden_dim": 3}},
        "train": {"data": ["a.hdf5", {"path": "b.hdf5", "horizon": 3}], "batch_size": 7},
        "other": 1,
    }
    config = config_from_content(unknown, ignore_unknown=True)
    known = {"train": {"data": ["a.hdf5", "b.hdf5"], "batch_size": 7}}
    assert config == config_factory("bc", known)
    assert all(key in caplog.text for key in ("algo.dyn", "train.data.1.horizon", "other"))
    with pytest.raises(ValueError, match="train.batch_size"):
        config_from_content({**unknown, "train": {"batch_size": "x"}}, ignore_unknown=True)


def test_formats_of_rotations_in_robomimics_templates_are_read():
    config = {"actions": {"format": "rot_axis_angle", "normalization": None}}
    assert config_factory("bc", {"train": {"action_config": config}})


def keys_without_description(section, path):
    described = descriptions_of(section)
    for name, field in section.model_fields.items():
        if not described.get(name):
            yield f"{path}{name} ({section.__name__})"
        for kind in sections_in(field.annotation):
            yield from keys_without_description(kind, f"{path}{name}.")


def sections_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


OURS = [name for name in ALGO_CONFIGS.names() if ALGO_CONFIGS[name].__module__[:6] == "offrl."]


@pytest.mark.parametrize("name", OURS)
def test_every_key_of_an_algorithm_has_a_description(name):
    assert not list(keys_without_description(ALGO_CONFIGS[name], "algo."))


@pytest.mark.parametrize(
    ("example", "section"),
    [("new_algorithm", "RobustBCConfig"), ("new_chunk_policy", "ChunkRegressionConfig")],
)
def test_every_key_of_an_example_has_a_description(example, section):
    module = importlib.import_module(f"examples.{example}")
    assert not list(keys_without_description(getattr(module, section), "algo."))


def test_every_other_key_has_a_description():
    assert not list(keys_without_description(Config, ""))


def test_a_key_without_a_description_is_named():
    class Inner(Section):
        depth: int = 1

    class Outer(Section):
        inner: dict[str, Inner] | None = Field(None, description="Said.")

    assert list(keys_without_description(Outer, "algo.")) == ["algo.inner.depth (Inner)"]


def test_a_key_with_another_default_keeps_its_description():
    class Slower(AlgoConfig):
        optim_params: dict = {}
        pace: int = Field(1, description="Said of a field.")

    class Slowest(Slower):
        pace: int = 2

    class Other(Slowest):
        pace: int = 3
        """Said below
        the key."""

    usual = descriptions_of(AlgoConfig)["optim_params"]
    assert usual.startswith("Optimizer of each network")
    assert descriptions_of(Slower)["optim_params"] == usual
    assert descriptions_of(Slowest)["pace"] == "Said of a field."
    assert descriptions_of(Other)["pace"] == "Said below the key."


def test_a_section_whose_source_is_not_found_has_the_descriptions_of_its_fields():
    typed_in = {"Section": Section, "Field": Field}
    exec("class Quick(Section):\n    pace: int = 1\n    'Not found.'", typed_in)
    exec("class Slow(Section):\n    pace: int = Field(1, description='Found.')", typed_in)
    assert descriptions_of(typed_in["Quick"]) == {}
    assert descriptions_of(typed_in["Slow"]) == {"pace": "Found."}


def test_configs_that_ship_are_found_by_their_bare_names_and_as_yaml():
    expected = find_config("online/cartpole_impala.json")
    assert find_config("cartpole_impala.json") == expected
    assert find_config("cartpole_impala.yaml") == find_config("cartpole_impala.yml") == expected
    with pytest.raises(FileNotFoundError, match="^no_such.yaml"):
        find_config("no_such.yaml")
