"""Operators that PyTorch may change without a word are called in ``offrl/kernels`` alone."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "offrl"
ELSEWHERE = [p for p in sorted(PACKAGE.rglob("*.py")) if p.parent != PACKAGE / "kernels"]


def private_names(source):
    """Names below ``torch`` that begin with an underscore or belong to ``torch.ops``."""
    tree, full = ast.parse(source), {}  # {name in the file: name of the import}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            full |= {name: f"{node.module}.{original}" for name, original in names.items()}
    used = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for name in [*full, *used]:
        first, *others = name.split(".")
        parts = [*full.get(name, full.get(first, "")).split("."), *others]
        is_private = [part.startswith("_") and not part.endswith("__") for part in parts]
        if parts[0] == "torch" and name.replace(".", "").isidentifier():
            if any(is_private) or "ops" in parts:
                yield name


def test_no_private_operator_is_called():
    used = {
        str(path.relative_to(PACKAGE)): [*private_names(path.read_text())] for path in ELSEWHERE
    }
    assert not {path: names for path, names in used.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._foreach_norm([])",
        "import torch\ntorch.ops.aten.mm(a, b)",
        "from torch._C import Generator",
        "from torch import _foreach_mul_ as scale",
        "import torch._dynamo",
        "from torch.nn import functional as F\nF._canonical_mask(x)",
    ],
)
def test_private_operators_are_found(source):
    assert list(private_names(source))


def test_public_ones_are_not():
    source = "import torch\nfrom torch import nn\ntorch.__version__\nself._x(torch.ones(1)._y)"
    assert not list(private_names(source))
