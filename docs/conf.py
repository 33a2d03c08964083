"""Sphinx's settings. `python docs/build.py` builds the site."""

import re

project = "keras_dml"
author = "the authors of keras_dml"
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

# Docstrings and pages write code in single backticks, as in Markdown.
default_role = "literal"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "keras_dml"
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
    """Connect the conversion of docstrings."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=1)


def _as_restructured_text(app, what, name, obj, options, lines):
    """Convert a docstring's Markdown: indented code, code in single backticks, and bars."""
    text = re.sub(
        r"^Examples:\n\n?((?: {4}(?! *>>>).*\n|\n)+)",
        lambda found: "Examples:\n    .. code-block:: python\n\n"
        + re.sub(r"^(?=.)", "    ", found[1], flags=re.MULTILINE),
        "\n".join([*lines, ""]),
        flags=re.MULTILINE,
    )
    lines[:] = text.split("\n")
    if "code-block" in text:
        return
    for number, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts = re.split(r"(`[^`]+`)", line)
        lines[number] = "".join(
            part if place % 2 else part.replace("|", r"\|").replace("*", r"\*")
            for place, part in enumerate(parts)
        )
