"""The site's pages, without Sphinx: the navigation and the reference."""

import importlib.util
import pathlib

import pytest

import keras_dml

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "build.py")
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
