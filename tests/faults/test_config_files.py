"""Whatever a config says: what comes of it says the same, or one line says what is wrong.

The corpus is the configs that ship and robomimic's templates, mutated at random.
"""

import contextlib
import copy
import io
import json
import re
from pathlib import Path

import pytest
from conftest import GOLDEN, ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offrl import algo_factory, config_factory
from offrl.__main__ import main
from offrl.algos import PolicyAlgo, register_algo
from offrl.config import AlgoConfig
from offrl.registry import ALGOS

CONFIGS = [*sorted((ROOT / "configs").rglob("*.json")), *sorted(GOLDEN.glob("configs/*.json"))]
ROBOMIMICS_MOVES = ("feature_dimension", "pool_class", "pool_kwargs", "mse", "is_conditioned")
NEWER_KEYS = ("batched", "num_batch_envs", "data_format")


def print_config(*arguments):
    """What ``offrl train --print-config`` does: exit status, the config if there is one, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["train", "--print-config", *map(str, arguments)])
    return status, json.loads(out.getvalue()) if status == 0 else None, err.getvalue()


def is_clear(status, err):
    """Whether it failed with one line for people."""
    lines = [line for line in err.splitlines() if not line.startswith("the config is read as")]
    return status == 1 and len(lines) == 1 and lines[0].startswith("offrl: error: ")


def leaves(tree, path=()):
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def contradictions(said, config):
    """What a config that was taken has otherwise than the file: paths."""
    for path, value in leaves(said):
        found = config
        # Robomimic's diffusion policy has the average of weights among its own keys.
        for key in ("train", *path[1:]) if path[:2] == ("algo", "ema") else path:
            found = found.get(key, "nothing") if isinstance(found, dict) else "nothing"
        if path == ("train", "data") and value is not None:
            entries = value if isinstance(value, list) else [value]
            value = [entry["path"] if isinstance(entry, dict) else entry for entry in entries]
            found = [entry["path"] for entry in found]
        is_moved = bool({*ROBOMIMICS_MOVES, *NEWER_KEYS} & set(path))
        is_moved |= path == ("train", "seq_length") and said.get("algo_name") == "gl"
        is_dropped = path[-1] in ("shuffled_obs_key_groups", "hdf5_normalize_actions")
        is_empty = value is None and found == {}  # robomimic's null for a map
        is_section = value == {} and isinstance(found, dict)
        is_same = found == value and isinstance(found, bool) == isinstance(value, bool)
        if not (is_moved or is_dropped or is_empty or is_section or is_same):
            yield ".".join(path), value, found


def check(text, folder, suffix=".json", said=None):
    """``unharmed`` or ``clear``; anything else fails."""
    path = Path(folder) / f"config{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    status, config, err = print_config("--config", path)
    if status == 0:
        assert "Traceback" not in err
        wrong = list(contradictions(json.loads(text) if said is None else said, config))
        assert not wrong, f"silently otherwise: {wrong}"
        return "unharmed"
    assert is_clear(status, err), err
    return "clear"


# -- mutations ------------------------------------------------------------------------------------

DEEP = "DEEP"  # replaced in the text by lists in lists
ODD = [
    *(None, True, False, 0, -1, 1, 3, 0.5, -0.5, 1e308, float("nan"), float("inf"), -float("inf")),
    *(2**31, 2**63, 2**64, 2**70, 10**300, -(2**70)),
    *("", "x", "0", "true", "\0", "a\0b", "\ud800", "\n", "é" * 300, "a" * 10**5, ".", "..", "/"),
    *("~nobody/x", "a.b", "a..b", "None", "__class__", "nan"),
    *([], [1], [-1], [None], ["a"], [[]], [{}], [{"a": 1}], [float("nan")], [10**6] * 3),
    *({}, {"a": 1}, {"": 1}, {"a\0": 1}, {"a": {"b": {"c": None}}}, {"a": float("inf")}),
    DEEP,
]


@st.composite
def mutated(draw):
    """A config's content with one to three changes."""
    content = json.loads(draw(st.sampled_from(CONFIGS)).read_text())
    for _ in range(draw(st.integers(1, 3))):
        sections = [content, *_sections(content)]
        section = draw(st.sampled_from([s for s in sections if s]))
        key = draw(st.sampled_from(sorted(section)))
        kind = draw(
            st.sampled_from(["value", "value", "value", "misspelt", "moved", "gone", "new"])
        )
        if kind == "value":
            section[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif kind == "misspelt":
            at = draw(st.integers(0, len(key)))
            other = draw(st.sampled_from(["x", "_", " ", ".", "é", ""]))
            section[key[:at] + other + key[at + 1 :]] = section.pop(key)
        elif kind == "moved":
            draw(st.sampled_from(sections))[key] = copy.deepcopy(section.pop(key))
        elif kind == "gone":
            del section[key]
        else:
            section[draw(st.sampled_from(["a", "", "seed", "enabled", "__proto__", "\0"]))] = (
                copy.deepcopy(draw(st.sampled_from(ODD)))
            )
    return content


def _sections(content):
    for value in content.values():
        if isinstance(value, dict):
            yield value
            yield from _sections(value)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(content=mutated())
def test_what_a_mutated_config_says_is_taken_or_refused(content, tmp_path_factory):
    text = json.dumps(content).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000)
    check(text, tmp_path_factory.getbasetemp())


# -- files ----------------------------------------------------------------------------------------

BC = '{"algo_name": "bc", "train": {"seed": 5, "batch_size": 7}}'
LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i + 1}: &a{i + 1} [{f'*a{i}, ' * 9}]" for i in range(9))])
MERGES = "\n".join(
    ["b0: &b0 {k: 1}", *(f"b{i + 1}: &b{i + 1} {{<<: [{f'*b{i}, ' * 9}]}}" for i in range(9))]
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"algo_name": "bc", "train": {"seed": 1, "seed": 2}}', "train.seed: given twice"),
        ('{"algo_name": "bc", "train": {}, "train": {}}', "train: given twice"),
        ('{"algo_name": "bc", "algo_name": "bc"}', "algo_name: given twice"),
        ('{"algo_name": "bc", "train": {"max_grad_norm": NaN}}', "train.max_grad_norm: nan is no"),
        ('{"algo_name": "bc", "train": {"max_grad_norm": 1e400}}', "inf is no finite number"),
        ('{"algo_name": "bc", "train": {"max_grad_norm": Infinity}}', "inf is no finite number"),
        (BC.replace("5", "9" * 5000), "not valid JSON"),
        (BC.replace("5", str(2**70)), "train.seed: .*64 bits"),
        (BC.replace("5", '{"a": ' * 60 + "1" + "}" * 60), "more than 50 levels"),
        (BC.replace("5", "[" * 10**5 + "]" * 10**5), "too many levels"),
        (BC.replace("5", f"[{'0,' * 200_000}0]"), "more than 100000 values"),
        ('{"algo_name": 3}', "algo_name: .*not 3"),
        ('{"algo_name": ["bc"]}', "algo_name: .*not ..bc.."),
        ('{"algo_name": null}', "algo_name: .*not None"),
        ('{"algo_name": "%s"}' % ("b" * 10**5), "unknown algorithm 'bbb"),
        ('{"algo_name": "b\\u0000c"}', "algo_name: .*NUL"),
        ('{"algo_name": "bc", "\\u0000": 1}', "key .* is no ordinary text"),
        ('{"train": {}}', "the key .algo_name."),
        (
            '{"experiment": {"ckpt_path": true}, "train": {"num_steps": 5}}',
            "path is needed, not True",
        ),
        ("[1, 2]", "a config is a map"),
        ("3", "a config is a map"),
        ("null", "a config is a map"),
        ("", "not valid JSON"),
        ('{"algo_name": "bc",}', "not valid JSON"),
        (b"\x89HDF\r\n\x1a\n\x00\xff" * 100, "not valid JSON or YAML, which are text"),
        (BC.encode("utf-16"), "not valid JSON or YAML, which are text"),
        (b" " * 10_000_001, "larger than 10 MB"),
    ],
    ids=range(27),
)
def test_files_that_are_no_config_are_one_line(text, words, tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, _, err = print_config("--config", path)
    assert is_clear(status, err) and len(err) < 1000, err
    assert re.search(words, err), err


def test_a_byte_order_mark_does_no_harm(tmp_path):
    assert check(b"\xef\xbb\xbf" + BC.encode(), tmp_path, said=json.loads(BC)) == "unharmed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train: {seed: 1, seed: 2}", "'seed' is given twice.* line 2"),
        ("train: {}\ntrain: {}", "'train' is given twice.* line 3"),
        ("train: {seed: 010}", "'010' can be read in several ways"),
        ("train: {seed: 0o10}", "'0o10' can be read"),
        ("train: {seed: 08}", "'08' can be read"),
        ("experiment: {name: 007}", "'007' can be read"),
        ("train: {seed: 1:30}", "'1:30' can be read"),
        ("train: {max_grad_norm: 1:30.5}", "'1:30.5' can be read"),
        ('train: {seed: !!int "010"}', "'010' can be read"),
        ("experiment: {name: 2024-01-02}", "'2024-01-02' can be read"),
        ("experiment: {env_meta_update_dict: {day: 2024-01-02}}", "'2024-01-02' can be read"),
        ("experiment: {env_meta_update_dict: {a: !!set {x, y}}}", "a: {.*} is neither text nor"),
        ("experiment: {env_meta_update_dict: {a: !!binary aGk=}}", "a: b'hi' is neither"),
        ("experiment: {env_meta_update_dict: {1: 2}}", "the key 1 is no ordinary text"),
        ("experiment: {env_meta_update_dict: {a: .inf}}", "a: inf is no finite number"),
        ("experiment: {validate: !!bool perhaps}", "not what its tag says"),
        ("experiment: {name: !!python/object/apply:os.system [ls]}", "constructor for the tag"),
        ("train: {max_grad_norm: .nan}", "nan is no finite number"),
        ("train: &train {data: *train}", "holds itself"),
        (LAUGHS, "more than 100000 values"),
        ("[" * 5000, "too many levels|not valid YAML"),
        ("---\nalgo_name: bc", "not valid YAML"),
        ("train:\n\tseed: 1", "not valid YAML"),
        ("train: {seed: *unknown}", "not valid YAML"),
        (MERGES, "unknown key"),
    ],
    ids=range(25),
)
def test_yaml_that_says_two_things_is_one_line(line, words, tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(f"algo_name: bc\n{line}\n")
    status, _, err = print_config("--config", path)
    assert is_clear(status, err) and len(err) < 1200, err
    assert re.search(words, err), err


def test_yaml_merges_sections_where_it_says_so(tmp_path):
    text = "algo_name: bc\ntrain: {<<: &common {seed: 5, batch_size: 7}, seed: 6}\n"
    said = {"train": {"seed": 6, "batch_size": 7}}
    assert check(text, tmp_path, ".yaml", said) == "unharmed"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "a folder; name a file in it"),
        ("none.json", "no such file"),
        ("a" * 5000, "no such file .*too long"),
        ("a\0b", "no such file"),
        ("line\nbreak.json", "no such file"),
    ],
)
def test_what_is_no_file_is_one_line(name, words, tmp_path):
    status, _, err = print_config("--config", f"{tmp_path}/{name}")
    assert is_clear(status, err) and re.search(words, err), err
    status, _, err = print_config("--config", "~nobody-of-this-name/x.json")
    assert is_clear(status, err), err


# -- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("", "KEY=VALUE"),
        ("=", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("a..b=1", "KEY=VALUE"),
        (".=1", "KEY=VALUE"),
        ("train.seed", "KEY=VALUE"),
        ("x" * 10**6, "KEY=VALUE"),
        ("train.seed=", "train.seed: .*got ''"),
        ("train.seed=1e400", "train.seed: inf is no finite number"),
        ("train.seed=NaN", "train.seed: nan is no finite number"),
        ("train.seed=-1", "train.seed: "),
        ("train.seq_length=1000000000", "train.seq_length: .*100000"),
        ("train.frame_stack=1000000000", "train.frame_stack: .*100000"),
        ('train.action_keys=["a", "a"]', "train.action_keys: 'a' is named twice"),
        ("train.seed=" + "9" * 30, "train.seed: .*64 bits"),
        ("train.seed=" + "9" * 5000, "train.seed=9.*digits"),
        ("train.seed=" + "x" * 10**6, "train.seed: .*integer"),
        ('train={"seed": 1, "seed": 2}', "train.seed: given twice"),
        ("train=" + "[" * 10**5, "too many levels"),
        ("train." * 10**4 + "x=1", "more than 50 levels"),
        ("train=3", "train: a map is needed"),
        ("algo_name=5", "algo_name: .*not 5"),
        ("algo_name=nonsense", "unknown algorithm"),
        ("experiment.name=a\0b", "experiment.name: .*NUL"),
        ("experiment.name=a\nb", "experiment.name: .*no name of a folder"),
        ("experiment.name=.", "experiment.name: .*no name of a folder"),
        ("experiment.name= ", "experiment.name: .*no name of a folder"),
        ("experiment.name=../x", "experiment.name: .*no name of a folder"),
        ("experiment.name=" + "a" * 300, "experiment.name: .*too long"),
        ("experiment.name=" + "é" * 200, "experiment.name: .*too long"),
        ("experiment.name=\udcff", "experiment.name: .*half a character"),
        ("algo.discount=1", "algo.discount: unknown"),
        ('train.data=[{"path": "x", "weight": Infinity}]', "weight: inf"),
        ("train.rewards.shift=NaN", "train.rewards.shift: nan"),
        ("experiment.save.epochs=[-1]", "experiment.save.epochs.0: "),
        ("experiment.env_meta_update_dict.a=NaN", "a: nan"),
        ("algo.rnn.kwargs.dropout=2", "algo.rnn.kwargs: dropout takes"),
        ("algo.transformer.attn_dropout=1.5", "attn_dropout"),
        ("algo.optim_params.policy.learning_rate.decay_factor=-1", "decay_factor"),
        ('observation.modalities.obs={"low_dim": ["a"], "rgb": ["a"]}', "'a' is named in low_dim"),
    ],
    ids=range(40),
)
def test_what_set_cannot_mean_is_one_line(override, words, tmp_path):
    (tmp_path / "bc.json").write_text(BC)
    status, _, err = print_config("--config", tmp_path / "bc.json", "--set", override)
    assert is_clear(status, err) and len(err) < 1500, err
    assert re.search(words, err), err


def test_what_is_set_stands_in_the_config(tmp_path):
    (tmp_path / "bc.json").write_text(BC)
    name = "é" * 127
    for key, value in {"train.seed": 2**64 - 1, "experiment.name": name}.items():
        status, config, err = print_config(
            "--config", tmp_path / "bc.json", "--set", f"{key}={value}"
        )
        assert status == 0 and config[key.split(".")[0]][key.split(".")[1]] == value, err


def test_values_are_cut_and_errors_counted():
    with pytest.raises(ValueError) as error:
        config_factory("bc", {"train": {"batch_size": "x" * 10**6}})
    assert "got 'xxx" in str(error.value) and len(str(error.value)) < 200
    with pytest.raises(ValueError, match="990"):
        config_factory("bc", {f"key{i}": 1 for i in range(1000)})


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1, 2}}, {"a": float("inf")}, {"a": object()}])
def test_what_could_not_be_read_again_is_no_config(value):
    with pytest.raises(ValueError, match="env_meta_update_dict"):
        config_factory("bc", {"experiment": {"env_meta_update_dict": value}})
    config = config_factory("bc")
    with pytest.raises(ValueError):
        config.experiment.env_meta_update_dict = value


# -- encoders' free-form options ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("num_crops", "x", "num_crops .*int.*'x'"),
        ("num_crops", 0, "num_crops, num_samples"),
        ("num_crops", 1.5, "num_crops .*int.*1.5"),
        ("crop_height", True, "crop_height .*int.*True"),
        ("pos_enc", 3, "pos_enc .*bool.*3"),
        ("crop_hight", 3, "'crop_hight'.*crop_height"),
    ],
)
def test_options_of_a_randomizer_are_of_its_types(option, value, words):
    rgb = {"obs_randomizer_class": "CropRandomizer", "obs_randomizer_kwargs": {option: value}}
    observation = {"modalities": {"obs": {"low_dim": [], "rgb": ["i"]}}, "encoder": {"rgb": rgb}}
    config = config_factory("bc", {"observation": observation})
    with pytest.raises(ValueError, match=words):
        algo_factory("bc", config, {"i": (3, 84, 84)}, 4, "cpu")


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", ".x", "a\0b", "a b", "a/b", "x" * 5000])
def test_names_that_no_module_has_are_unknown(name):
    with pytest.raises(ValueError, match="iql") as error:
        ALGOS[name]
    assert len(str(error.value)) < 500


def test_a_window_that_an_algorithm_wants_is_checked_as_one_that_a_config_says():
    class Greedy(PolicyAlgo):
        @classmethod
        def window(cls, algo_config):
            return {"seq_length": 10**9}

    class GreedyConfig(AlgoConfig):
        ALGO_NAME = "greedy"

    register_algo(GreedyConfig)(Greedy)
    with pytest.raises(ValueError, match="train.seq_length: .*100000") as e:
        config_factory("greedy")
    assert "\n" not in str(e.value)
