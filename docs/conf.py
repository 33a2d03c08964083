"""Sphinx's settings. `python docs/build.py` builds the site."""

import itertools
import pathlib
import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from docutils.utils.math.unichar2tex import uni2tex_table
from formulas import SYMBOL, is_formula, latex, with_formulas

project = "keras_dml"
author = "the authors of keras_dml"
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath"]

# Docstrings and pages write code in single backticks, as in Markdown.
default_role = "literal"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
# One entry for arguments that share a description, such as `reduction, name, dtype: As in ...`.
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
# Blocks of `text` are outputs.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
highlight_language = "none"

html_theme = "pydata_sphinx_theme"
html_title = "keras_dml"
html_favicon = "static/favicon.svg"
html_search_scorer = str(pathlib.Path(__file__).parent / "search_scores.js")
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {"index": [], "start": [], "flags": []}
html_theme_options = {
    "footer_start": [],
    "footer_end": [],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}


def setup(app):
    """Connect the conversion of docstrings and of formulas."""
    app.add_html_math_renderer("mathml", (_visit_math, None), (_visit_math, None))
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=1)
    app.connect("autodoc-skip-member", _skip_field)


def _skip_field(app, what, name, obj, skip, options):
    """Skip fields of named tuples, which the section `Attributes:` describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def _visit_math(translator, node):
    """Write MathML, which browsers typeset without a script."""
    is_block = isinstance(node, nodes.math_block)
    mathml = tex2mathml(node.astext().translate(uni2tex_table), as_block=is_block)
    # As in LaTeX, a thin space between a function and an argument without parentheses.
    argument = r"(&ApplyFunction;</mo>)(?!\s*<mo[^>]*>[(\[])"
    mathml = re.sub(argument, r'\1<mspace width="0.17em"></mspace>', mathml)
    translator.body.append(f'<div class="formula">{mathml}</div>' if is_block else mathml)
    raise nodes.SkipNode


def _as_restructured_text(app, what, name, obj, options, lines):
    """Convert a docstring's Markdown: formulas, indented code, and code in single backticks."""
    converted, section, code, displayed = [], "", None, False
    lines[:] = with_formulas("\n".join(lines), ":math:`{}`").split("\n")
    for number, line in enumerate(lines):
        if line and not line.startswith(" "):
            section, code = line if re.fullmatch(r"[A-Z][\w ]*:", line) else "", None
        elif code is None and not section and line.startswith("    ") and not lines[number - 1]:
            code = ""
            block = itertools.takewhile(lambda each: each[:1] in ("", " "), lines[number:])
            displayed = all(is_formula(each) for each in block if each)
            converted += [] if displayed else [".. code-block:: text", ""]
        if code is not None and displayed:
            converted += [f".. math:: {latex(line.strip())}", ""] if line else []
        elif code is not None:
            converted.append(code + line if line else "")
        elif line == "Examples:":
            first = next(filter(str.strip, lines[number + 1 :]), "")
            converted.append(line)
            displayed = False
            if not first.lstrip().startswith(">>>"):
                code = "    "
                converted += ["    .. code-block:: python", ""]
        elif line.lstrip().startswith((">>>", "...")):
            converted.append(line)
        else:
            parts = re.split(r"(`[^`]+`)", line)
            parts[::2] = [_as_plain_text(part) for part in parts[::2]]
            converted.append("".join(parts))
    lines[:] = converted


def _as_plain_text(text):
    """Escape text, and typeset symbols with an index, such as `T_i`."""
    text = re.sub(r"([|*])", r"\\\1", text)
    return re.sub(SYMBOL, lambda symbol: rf"\ :math:`{latex(symbol[0])}`\ ", text)
