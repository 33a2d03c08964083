"""One table as Markdown, CSV, and LaTeX."""

import csv

from experiments.evaluation.tables import write_table

LINES = [["recipe", "R@1", "time, s"], ["cub_ce & co", "85.4 ± 0.6", "–"], ["50 %", "97.4", "3.0"]]


def test_a_table_is_written_in_three_formats(tmp_path):
    text = write_table(tmp_path / "study", LINES, "Below.")
    assert (tmp_path / "study.md").read_text() == f"{text}\n"
    assert text.splitlines() == [
        "| recipe      |        R@1 | time, s |",
        "| ----------- | ---------: | ------: |",
        "| cub_ce & co | 85.4 ± 0.6 |       – |",
        "| 50 %        |       97.4 |     3.0 |",
        "",
        "Below.",
    ]
    with open(tmp_path / "study.csv", newline="") as stream:
        assert list(csv.DictReader(stream)) == [
            {"recipe": "cub_ce & co", "R@1": "85.4", "R@1, ±": "0.6", "time, s": ""},
            {"recipe": "50 %", "R@1": "97.4", "R@1, ±": "", "time, s": "3.0"},
        ]
    latex = (tmp_path / "study.tex").read_text().splitlines()
    assert latex[0] == r"\begin{tabular}{lrr}" and latex[-1] == r"\end{tabular}"
    assert r"cub\_ce \& co & 85.4 $\pm$ 0.6 &       -- \\" in latex
    assert latex[5].startswith(r"50 \%")
