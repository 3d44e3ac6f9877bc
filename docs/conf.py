"""How Sphinx makes the site of these pages: ``make docs``."""

import sys
from pathlib import Path

import torch  # noqa: F401 (before offrl, whose annotations then show its types)

import offrl

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "offrl"
author = "the offrl authors"
copyright = "2026, the offrl authors"
version = release = offrl.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "sphinx_copybutton",
    "config_reference",
    "command_reference",
    "docstrings",
]
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

# Every name that a page or a docstring refers to must be there; those of other packages cannot be
# looked up without a network, and type variables are no classes.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!offrl).*"), ("py:class", r"offrl\..*\.(T|Self|AlgoClass)")]
smartquotes_action = "qe"  # but no dashes: options begin with two hyphens
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"offrl {release}"
html_static_path = ["_static"]
html_css_files = ["offrl.css"]
html_show_search_summary = False  # fetches pages, which browsers refuse to those on a disk
html_copy_source = False
html_show_sphinx = False
