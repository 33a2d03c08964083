"""The site's pages, without Sphinx: navigation, links, flags, and the markup of docstrings."""

import importlib.util
import pathlib
import re

import pytest

import keras_dml
from experiments.options.declaration import declarations
from experiments.options.run_options import RunOptions

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build():
    return loaded("build")


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page(build):
    pages = ROOT / "docs" / "pages"
    written = {path.relative_to(pages).with_suffix("").as_posix() for path in pages.rglob("*.md")}
    modules = {f"api/{module.split('.')[-1]}" for module in build.MODULES}
    generated = {"flags", *build.REPOSITORY.values(), *modules}
    listed = [page for _, subpages in build.SECTIONS.values() for page in subpages]
    assert len(listed) == len(set(listed))
    assert set(listed) == written - {"index", "start"} | generated


def test_the_reference_has_every_public_module(build):
    modules = {f"keras_dml.{name}" for name in keras_dml.__all__} | {"pipelines"}
    assert set(build.MODULES) >= modules - {"keras_dml.losses"}


def test_pages_have_no_directives():
    for path in (ROOT / "docs" / "pages").rglob("*.md"):
        assert not re.search(r"^(:::|```\{|!!!)", path.read_text(), re.MULTILINE), path


def test_links_lead_to_pages_of_the_site(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    page = tmp_path / "guides" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "[a](../api/losses.md#keras_dml.losses.TripletLoss) [b](../api/losses.md) "
        "[c](../../../BUILD.md#install) [d](keras.md)"
    )
    assert build._with_links_of_the_site(page) == (
        "[a](../api/losses/TripletLoss.md) [b](../api/losses.md) [c](../building.md#install) "
        "[d](keras.md)"
    )


def test_the_flags_of_all_commands_are_on_one_page(build):
    page = build._flags()
    headings = re.findall(r"^## `--(\w+)`$", page, re.MULTILINE)
    assert headings == sorted(set(headings))
    assert {*declarations(RunOptions), "prefix", "int8", "where", "search"} <= set(headings)
    epochs = page.split("## `--epochs`\n")[1].split("\n## ")[0]
    assert "Default: `" in epochs and "`run`" in epochs


def test_docstrings_become_restructured_text():
    docstring = """Compute |P| for `a|b`,

    x = |y|

with

- a list.

Examples:

    f(
        3
    )

Args:
    a: one `*b`."""
    lines = docstring.splitlines()
    loaded("conf")._as_restructured_text(None, "function", "f", None, None, lines)
    assert (
        "\n".join(lines)
        == r"""Compute \|P\| for `a|b`,

.. code-block:: text

    x = |y|

with

- a list.

Examples:
    .. code-block:: python


        f(
            3
        )

Args:
    a: one `*b`."""
    )
