"""The tutorials' code runs and prints the output on the page, up to the digits of the numbers."""

import pathlib
import re

import pytest

PAGES = sorted((pathlib.Path(__file__).parents[1] / "docs" / "pages" / "tutorials").glob("*.md"))
NUMBER = re.compile(r"-?\d+(\.\d*)?")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.any_backend
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_prints_the_output(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text("utf-8"), {}
    for kind, block in re.findall(r"^```(python|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(block, names)
            continue
        printed = capsys.readouterr().out
        assert _without_digits(printed) == _without_digits(block), printed


def _without_digits(text):
    return " ".join(NUMBER.sub("#", text).split())
