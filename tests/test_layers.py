"""No import runs upwards or sideways through the layers."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "offrl"
LAYERS = {
    "compat": 0,
    "config": 0,
    "config_files": 0,
    "language": 0,
    "registry": 0,
    "section": 0,
    "specs": 0,
    "tree": 0,
    "normalize": 0,
    "data": 1,
    "models": 1,
    "envs": 1,
    "algos": 2,
    "rollout": 2,
    "checkpoint": 3,
    "training": 3,
    "tools": 4,
    "__main__": 5,
}
BESIDES = {("algos", "models"), ("training", "checkpoint")}  # allowed within or across a layer
NOT_BELOW = {"rollout": {"data", "models", "envs", "algos"}}  # algo and env are duck-typed


def part(module):
    return module.split(".")[1]


def imported(path):
    module = [*path.relative_to(PACKAGE.parent).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            source = (base + (node.module or "")).rstrip(".")
            yield source
            if source == "offrl":
                yield from (f"offrl.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_run_downwards(path):
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own == "__init__":
        return  # exports lazily
    for module in imported(path):
        if not module.startswith("offrl.") or part(module) in (own, "__version__"):
            continue
        other = part(module)
        assert other in LAYERS, f"{other} has no layer"
        if (own, other) in BESIDES or LAYERS[own] == LAYERS[other] == 0:
            continue
        assert LAYERS[other] < LAYERS[own], f"{own} imports {module}"
        assert other not in NOT_BELOW.get(own, ()), f"{own} imports {module}"


def test_the_base_layer_has_no_cycle():
    graph = {
        name: {part(m) for m in imported(PACKAGE / f"{name}.py") if m.startswith("offrl.")}
        for name, layer in LAYERS.items()
        if layer == 0
    }
    while graph:
        leaves = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert leaves, f"cycle among {sorted(graph)}"
        for name in leaves:
            del graph[name]
