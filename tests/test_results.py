"""Each measured score has one source: the tables of the results pages."""

import pathlib
import re

import pytest

from experiments.recipes import find_recipe

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / "docs" / "pages"
MEASURED = (PAGES / "results.md").read_text()
# Columns of the tables of single runs -> names in the recipes and on the pages.
COLUMNS = {
    "R@1": "R@1",
    "R@1, cosine": "R@1",
    "MAP@R": "MAP@R",
    "MAP@R, cosine": "MAP@R",
    "photo to catalog, R@1": "photo to catalog",
}


def cells(line):
    """Return the cells of a line of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def measured():
    """Return the scores in percent of each row of a single run, by recipe."""
    found = {}
    for table in re.findall(r"(?:^\|.*\n)+", MEASURED, re.M):
        head, _, *rows = table.splitlines()
        names = [COLUMNS.get(cell) for cell in cells(head)]
        for row in rows:
            recipe, *scores = cells(row)
            numbers = {
                name: float(score)
                for name, score in zip(names[1:], scores)
                if name and re.fullmatch(r"[\d.]+", score)
            }
            if len(numbers) > 1:
                found.setdefault(recipe, numbers)
    return found


SCORES = measured()


def expected(recipe):
    """Return the scores that the header of a recipe expects, as text."""
    header = find_recipe(f"{recipe}.flags").read_text().partition("\n--")[0].replace("\n# ", " ")
    said = header.partition("Expected:")[2]
    return dict(re.findall(r"(R@1|MAP@R|photo to catalog) ([\d.]+\d)", said))


@pytest.mark.parametrize("recipe", [name for name in SCORES if re.fullmatch(r"\w+", name)])
def test_recipes_expect_the_scores_of_the_results(recipe):
    said = expected(recipe)
    assert said
    for name, text in said.items():
        decimals = len(text.partition(".")[2])
        assert abs(float(text) - SCORES[recipe][name] / 100) <= 0.5 * 10**-decimals + 1e-9, name


@pytest.mark.parametrize("page", [ROOT / "README.md", PAGES / "index.md"])
def test_pages_quote_the_scores_of_the_picture(page):
    text = " ".join(page.read_text().split())
    rows = MEASURED.partition("| score of the picture's run ")[2].partition("\n\n")[0].splitlines()
    assert len(rows[2:]) == 3
    for name, untrained, trained, difference in map(cells, rows[2:]):
        score = name.removeprefix("photo to catalog, ")
        found = rf"{score}\b[a-z ]* from {untrained} % to {trained} % \({re.escape(difference)}\)"
        assert re.search(found, text), name


def test_the_photographs_page_quotes_the_scores_of_the_results():
    text = " ".join((PAGES / "guides" / "photographs.md").read_text().split())
    for name, start in (
        ("cached_groceries_multi_similarity", "cached_groceries_multi_similarity.flags`"),
        ("untrained backbone", "untrained backbone"),
    ):
        scores = SCORES[name]
        row = f"{start} | {scores['R@1']} | {scores['MAP@R']} | {scores['photo to catalog']} |"
        assert row in text, name


def test_the_main_job_has_one_score():
    [quoted] = re.findall(r"^embedding, cosine +([\d.]+) .* ([\d.]+) +[\d.]+$",
                          (ROOT / "README.md").read_text(), re.M)  # fmt: skip
    assert f"ends at {quoted[0]} and {quoted[1]}." in " ".join(MEASURED.split())
    assert expected("glyphs") == {"R@1": f"{float(quoted[0]) / 100:.2f}"}


def test_digits_expect_the_accuracies_of_figure_1():
    """The table of the papers page has them for seed 0, in the last column."""
    text = (PAGES / "results" / "papers.md").read_text()
    rows = dict(re.findall(r"^\|[^|]*\| (CE|SPCE) \| accuracy, % \|.*\| ([\d.]+) \|$",
                           text.partition("| 1 | CE")[0], re.M))  # fmt: skip
    for recipe, run in (("digits_ce", "CE"), ("digits_spce", "SPCE")):
        header = find_recipe(f"{recipe}.flags").read_text()
        [accuracy] = re.findall(r"accuracy ([\d.]+\d), cosine", header)
        assert float(accuracy) == pytest.approx(float(rows[run]) / 100, abs=5e-4)
