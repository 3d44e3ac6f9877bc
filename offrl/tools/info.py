"""Show what is in data, in a run folder or in a checkpoint.

example: offrl info datasets/lift/low_dim.hdf5
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offrl.memory import in_bytes
from offrl.tools import add_options

BEST = ("best_valid_loss", "best_return", "best_success_rate")
SENTENCES = {"wrong": 20, "remarks": 20, "unusual": 5}  # shown numbers of sentences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="DATA|RUN|CHECKPOINT")
    add("--json", action="store_true", help="print everything as JSON")
    add("--ranges", action="store_true", help="read all images for their ranges, not only a sample")
    add_options(parser, "--follow-links")


def run(args: argparse.Namespace) -> int:
    from offrl.reports.run import is_run, run_facts

    path = Path(args.path).expanduser()
    if is_run(path):
        facts = run_facts(path)
    elif path.suffix in (".pth", ".pt", ".ckpt"):
        facts = _checkpoint_facts(path)
    else:
        facts = _data_facts(args.path, args.ranges)
    if args.json:
        print(json.dumps(facts, indent=4))
    else:
        print("\n".join(_lines(facts)))
    return int(bool(facts["wrong"]))


def _data_facts(path: str, reads_all: bool) -> dict[str, Any]:
    from offrl.data.formats.files import find_data
    from offrl.data.info import DataInfo

    if not sys.stderr.isatty():  # importing a bar that nobody sees would take a twentieth of it all
        return DataInfo(find_data(path), reads_all).facts()
    from tqdm import tqdm

    with tqdm(unit="demo", leave=False) as bar:
        return DataInfo(find_data(path), reads_all, bar.update).facts()


def _checkpoint_facts(path: Path) -> dict[str, Any]:
    from offrl.checkpoint import read_checkpoint, while_loading
    from offrl.tree import leaves

    content = read_checkpoint(path)
    with while_loading(content, path):  # without the classes of its sections, a user's own perhaps
        data = (json.loads(content["config"]).get("train") or {}).get("data") or []
    entries = [data] if isinstance(data, (str, Mapping)) else data
    state = content.get("variable_state") or {}
    env_args = content.get("env_metadata") or {}
    evaluate = ["offrl", "rollout", "--checkpoint", str(path)]
    # An algorithm of the user's own is a module, or stands in one.
    name = content["algo_name"]
    own = name if Path(*name.split(".")).with_suffix(".py").is_file() else name.rpartition(".")[0]
    module = ["--module", own] if "." in name else []
    return {
        "checkpoint": str(path),
        "algorithm": content["algo_name"],
        "bytes_on_disk": path.stat().st_size,
        "numbers": sum(getattr(x, "numel", int)() for x in leaves(content["model"]).values()),
        "observations": content["shape_metadata"].get("all_shapes"),
        "action_dimensions": content["shape_metadata"].get("ac_dim"),
        "trained": {k: state[k] for k in ("epoch", "step", *BEST) if _is_known(state.get(k))},
        "data": [x.get("path") if isinstance(x, Mapping) else x for x in entries],
        "environment": {k: v for k, v in env_args.items() if k != "env_kwargs"},
        "versions": content.get("provenance") or {},
        "evaluate": shlex.join([*evaluate, *module]) if env_args else None,
        "wrong": [],
        "remarks": [],
    }


def _is_known(number: Any) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number)


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Format facts as text: a line for each, and a table of data's keys."""
    for name, value in facts.items():
        label = f"{name.replace('_', ' ') + ':':20}"
        if name == "keys":
            yield from _table(value)
        elif name in SENTENCES:
            word, num_shown = name.removesuffix("s"), SENTENCES[name]
            yield from (f"{word}: {sentence}" for sentence in value[:num_shown])
            if len(value) > num_shown:
                yield f"{word}: ... and {len(value) - num_shown} more (--json shows all)"
        elif value in (None, {}, []):
            continue
        elif name.startswith("bytes_"):
            yield label + in_bytes(value)
        elif name in ("best_evaluation", "last_evaluation", "test"):
            yield label + _in_rates(value)
        elif name == "seconds_to_first_batch":
            yield f"{'first batch:':20}after about {value:.2g} s, with all of it read into memory"
        elif name == "success":
            yield f"{label}{value['rate']:.1%} of {value['demonstrations']}"
        elif name == "epochs":
            yield f"{label}{value['done']} of {value['of']}"
        elif name == "provenance":
            yield from _origin(label, value)
        elif name == "environment":  # without what is switched off, and without whole controllers
            value = {**value, **value.get("env_kwargs", {})}
            yield label + _words({k: v for k, v in value.items() if v and not _is_nested(v)})
        else:
            yield label + _words(value)


def _origin(label: str, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on the origin of data, and below them those of its inputs."""
    yield label + str(record.get("command", record.get("said")))
    history = record.get("history", {})
    for source in record.get("inputs", ()):
        before = history.get(source.get("fingerprint"), {}).get("command")
        yield f"{'':20}of {source.get('file')}{f': {before}' if before else ''}"


def _is_nested(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping)


def _table(keys: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    width = max(map(len, keys), default=0) + 2
    heads = f"{'range':28}{'on disk':>10}{'in memory':>11}"
    yield f"{'key':{width}}{'step':16}{'type':10}{heads}  stored"
    for name, key in keys.items():
        spread = f"[{_words(key['min'])}, {_words(key['max'])}]" if "min" in key else ""
        yield (
            f"{name:{width}}{key['shape']!s:16}{key['dtype']:10}{spread:28}"
            f"{in_bytes(key['bytes_on_disk']):>10}{in_bytes(key['bytes_in_memory']):>11}"
            f"  {key['storage']}"
        )


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return "none" if value is None else str(value)


def _in_rates(rates: Mapping[str, float]) -> str:
    if "return" not in rates:
        return f"none: no episode of epoch {rates['epoch']} could be run"
    unknown = dict.fromkeys(("n", "success_rate_low", "success_rate_high"), math.nan)
    rates = unknown | dict(rates)  # of a damaged log
    total = f"return {rates['return']:.4g}"
    if "success_rate" not in rates:
        return f"{total}, n = {rates['n']}, epoch {rates['epoch']}"
    low, high = rates["success_rate_low"], rates["success_rate_high"]
    return (
        f"success rate {rates['success_rate']:.1%} of {rates['n']}, 95 % interval {low:.1%} to "
        f"{high:.1%}, {total}, epoch {rates['epoch']}"
    )
