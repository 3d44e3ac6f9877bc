"""No import runs upwards or sideways through the layers, nor in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "offrl"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = {
    "aliases": 0,
    "beside_ray": 0,
    "cluster": 0,
    "config": 0,
    "images": 0,
    "intervals": 0,
    "language": 0,
    "lazy": 0,
    "links": 0,
    "memory": 0,
    "modules": 0,
    "normalize": 0,
    "outputs": 0,
    "parallel": 0,
    "processes": 0,
    "registry": 0,
    "robomimic": 0,
    "seeding": 0,
    "specs": 0,
    "tree": 0,
    "video": 0,
    "acting": 1,  # algorithm and environment are duck-typed
    "kernels": 1,
    "data": 2,
    "envs": 2,
    "models": 2,
    "algos": 3,
    "edits": 3,
    "evaluation": 4,
    "reports": 4,
    "checkpoint": 5,
    "rollout": 5,  # names of old
    "assembly": 6,
    "online": 7,
    "training": 8,
    "faces": 9,
    "studies": 9,
    "pipelines": 10,
    "tools": 11,
    "testing": 11,
    "__main__": 12,
}
# A layer's parts do not import each other, but those of the base, which has no cycle.


def part(module):
    return module.split(".")[1]


def is_for_editors(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported(path, with_types=True):
    module = [*path.relative_to(PACKAGE.parent).with_suffix("").parts]
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py" or not with_types:  # a package's lazy exports are among these
        tree.body = [node for node in tree.body if not is_for_editors(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module[: -node.level]) + "." if node.level else ""
            source = (base + (node.module or "")).rstrip(".")
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def test_imports_run_downwards():
    upwards = []
    for path in FILES:
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if own == "__init__":
            continue  # exports lazily
        for module in imported(path):
            if not module.startswith("offrl.") or part(module) in (own, "__version__"):
                continue
            other = part(module)
            if other not in LAYERS or not (
                LAYERS[other] < LAYERS[own] or LAYERS[other] == LAYERS[own] == 0
            ):
                upwards.append(f"{path.relative_to(PACKAGE)} imports {module}")
    assert not upwards


def test_the_base_layer_has_no_cycle():
    graph: dict = {}
    for path in FILES:
        name = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if LAYERS.get(name) == 0:
            needs = {part(m) for m in imported(path) if m.startswith("offrl.")} - {name}
            graph[name] = graph.get(name, set()) | needs
    TopologicalSorter(graph).prepare()


def test_no_two_modules_import_each_other():
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES)
    paths = {name.removesuffix(".__init__"): path for name, path in zip(names, FILES, strict=True)}
    graph = {
        module: {name for name in imported(path, with_types=False) if name in paths} - {module}
        for module, path in paths.items()
    }
    TopologicalSorter(graph).prepare()  # in functions neither
