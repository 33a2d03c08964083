"""The theory page: each cell prints the text below it."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "pages" / "guides" / "theory.md"
CELL = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_every_cell_prints_its_output(capsys):
    cells = CELL.findall(PAGE.read_text("utf-8"))
    assert len(cells) == PAGE.read_text("utf-8").count("```python") == 5
    names = {}
    for code, expected in cells:
        exec(code, names)
        assert capsys.readouterr().out == expected


def test_the_page_lists_every_erratum():
    rows = re.findall(r"^\| E(\d+) ", PAGE.read_text("utf-8"), re.MULTILINE)
    assert list(map(int, rows)) == list(range(1, 22))
