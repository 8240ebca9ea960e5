"""Sphinx configuration.  Build with ``sphinx-build -W -b html docs docs/_build/html``."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import ziamath
from docutils import nodes

# The sources next to this file are documented, installed or not.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import notsodeep

project = "notsodeep"
author = "The notsodeep authors"
project_copyright = f"2026, {author}"
release = notsodeep.__version__
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
root_doc = "index"
exclude_patterns = ["_build"]

# Formulas are LaTeX in the sources and pictures in the pages, drawn when the pages are built: no
# script, no font, and nothing that needs a network.
html_math_renderer = "drawn"
ziamath.config.svg2 = False  # without ids, which would repeat on a page
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Show these names in signatures, not what they stand for (see also `_plain_signature`).
_ALIASES = ("ArrayFunction", "ArrayLike", "FloatArray", "IntArray", "Method", "Parity")
autodoc_type_aliases = {name: name for name in _ALIASES}
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
default_role = "py:obj"  # single backquotes in docstrings name Python objects
# Words in the type slots of docstrings ("tuple of (str, value)") are looked up like references, and
# may be the name of several attributes; that is no mistake.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"notsodeep {release}"
html_show_sphinx = False


# Docstrings are written for a terminal: |ρ|, x**2 and (terms, *x.shape) mean what they say.
# In reStructuredText bars and stars are markup, so they are escaped on the way, outside code.
_CODE = re.compile(r"(``.*?``|`[^`]*`)")
_BAR = re.compile(r"(?<!\\)\|(?=\S)|(?<=[^\s\\])\|")
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,2})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])")
_STAR = re.compile(r"(?<!\\)\*")


def _escape_prose(text: str) -> str:
    """Escape bars, and the stars that are not emphasis."""
    pieces, end = [], 0
    for emphasis in _EMPHASIS.finditer(text):
        pieces += [_STAR.sub(r"\\*", text[end : emphasis.start()]), emphasis.group()]
        end = emphasis.end()
    pieces.append(_STAR.sub(r"\\*", text[end:]))
    return _BAR.sub(r"\\|", "".join(pieces))


_as_written: dict[str, list[str]] = {}


def _keep_attribute(_app: Any, what: str, name: str, *rest: Any) -> None:
    """Remember a docstring that napoleon would split at its first colon into type and text."""
    lines: list[str] = rest[-1]
    has_sections = any(re.match(r"\s*-{3}", line) for line in lines)
    if what in {"attribute", "data", "property"} and not has_sections:
        _as_written[name] = list(lines)


def _escape_docstring(_app: Any, _what: str, name: str, *rest: Any) -> None:
    """Escape every line of prose, after napoleon has turned numpydoc into fields."""
    lines: list[str] = rest[-1]
    lines[:] = _as_written.pop(name, lines)
    in_example = False
    for i, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example and not line.lstrip().startswith(".. "):
            parts = _CODE.split(line)
            lines[i] = "".join(p if k % 2 else _escape_prose(p) for k, p in enumerate(parts))


_WRAPPED = re.compile(
    r"TypeAliasForwardRef\('(\w+)'\)"
    r"|[~\w.]*ndarray\[[~\w.]*tuple\[[~\w.]*Any, \.\.\.\], [~\w.]*dtype\[[~\w.]*float64\]\]"
)


def _plain_signature(*event: Any) -> tuple[str | None, str | None]:
    """Undo Sphinx's wrapping of type aliases that stand inside another type."""
    plain = [t and _WRAPPED.sub(lambda m: m[1] or "FloatArray", t) for t in event[-2:]]
    return plain[0], plain[1]


def _drawn(latex: str, *, inline: bool) -> str:
    latex = re.sub(r"\\(begin|end){aligned}", r"\\\1{align*}", latex)
    drawn = ziamath.Latex(latex, size=18, color="currentColor", inline=inline)
    style = f"vertical-align: {drawn.getyofst():.1f}px" if inline else "overflow-x: auto"
    tag, words = "span" if inline else "div", html.escape(latex)
    svg = drawn.svg().replace("<svg ", '<svg style="overflow: visible" ', 1)  # hats may stick out
    picture = f'<{tag} class="math" role="img" aria-label="{words}" style="{style}">{svg}'
    return f"{picture}</{tag}>"


def _inline_math(translator: Any, node: Any) -> None:
    translator.body.append(_drawn(node.astext(), inline=True))
    raise nodes.SkipNode


def _displayed_math(translator: Any, node: Any) -> None:
    translator.body.append(_drawn(node.astext(), inline=False))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Connect the hooks; napoleon's has the default priority, 500."""
    app.add_html_math_renderer("drawn", (_inline_math, None), (_displayed_math, None))
    app.connect("autodoc-process-signature", _plain_signature)
    app.connect("autodoc-process-docstring", _keep_attribute, priority=400)
    app.connect("autodoc-process-docstring", _escape_docstring, priority=600)
