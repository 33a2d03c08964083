"""The notebooks of the pages, run from top to bottom."""

import os
import pathlib
import re
import runpy
import shutil
import sys

import pytest
from photo_search import write_photos

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
TUTORIALS = sorted(f"tutorials/{path.stem}" for path in PAGES.glob("tutorials/*.md"))
QUIET = """import keras
keras.utils.disable_interactive_logging()
keras.utils.set_random_seed(0)"""
NAMES = ["guides/photographs", "guides/keras", *TUTORIALS]


@pytest.fixture
def notebook_of():
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    nbformat = pytest.importorskip("nbformat")
    made = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))

    def build(page):
        assert made["has_notebook"](page)
        return nbformat.reads(made["notebook"]((PAGES / f"{page}.md").read_text("utf-8")), 4)

    return build


def printed(cell):
    """Return the stdout of a cell, with # for numbers: weights differ between machines."""
    text = "".join(each.text for each in cell.outputs if each.get("name") == "stdout")
    return " ".join(re.sub(r"-?\d+(\.\d*)?", "#", text).split())


def short(source):
    """Return a cell with fewer epochs, and without a network."""
    lines = []
    for line in re.sub(r"\b(num_steps|epochs)=\d\d+", r"\1=2", source).splitlines():
        if line.startswith("%pip "):
            continue
        if line.startswith("!keras-dml run"):
            line += " --epochs=1"
            if "--weights" not in line:
                line += " --backbone=efficientnet_lite0 --weights=packaged"
        lines.append(line)
        if line.startswith("!"):
            lines.append("assert _exit_code == 0")  # IPython continues after a failed command
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_a_notebook_has_the_code_of_its_page(page, notebook_of):
    import nbformat

    text = (PAGES / f"{page}.md").read_text("utf-8")
    found = notebook_of(page)
    nbformat.validate(found)
    code = [cell.source for cell in found.cells if cell.cell_type == "code"]
    python = re.findall(r"^```python\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    assert [source for source in code if source[0] not in "!%"] == python
    words = [cell.source for cell in found.cells if cell.cell_type == "markdown"]
    assert words[0].startswith("# ") and not re.search(r"\]\((?!http)|```text", "\n".join(words))
    assert found == notebook_of(page)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("page", NAMES)
def test_a_notebook_runs_from_top_to_bottom(page, notebook_of, tmp_path, monkeypatch):
    import nbclient
    from nbformat import v4

    names = [f"kind {number // 6}/{number}.jpg" for number in range(36)]
    shutil.copy(write_photos(tmp_path / "photos", names) / names[0], tmp_path / "query.jpg")
    commands = pathlib.Path(sys.executable).parent
    monkeypatch.setenv("PATH", os.pathsep.join([str(commands), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = notebook_of(page)
    expected = [printed(cell) for cell in found.cells if cell.cell_type == "code"]
    for cell in found.cells:
        cell.source = short(cell.source) if cell.cell_type == "code" else cell.source
    quiet = (
        "import keras\n\nkeras.utils.disable_interactive_logging()\nkeras.utils.set_random_seed(0)"
    )
    found.cells.insert(0, v4.new_code_cell(quiet))
    nbclient.NotebookClient(
        found, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    ran = [cell for cell in found.cells if cell.cell_type == "code"][1:]
    for cell, shown in zip(ran, expected, strict=True):
        if not re.search(r"^!", cell.source, re.MULTILINE):
            assert printed(cell) == shown, cell.source
