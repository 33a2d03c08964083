"""The report of a run: its parts, its escaped texts, and its pictures."""

import base64
import html.parser
import io
import os
import re
from unittest import mock

import matplotlib
import numpy as np
import pytest
from PIL import Image

from experiments.evaluation.figures import Curves
from experiments.evaluation.result import Result
from experiments.evaluation.scores import score_table
from experiments.pages import report
from experiments.pages.embedding_map import Map
from experiments.pages.page import Cell, Row, array_picture
from experiments.pages.retrieval import Grid, Shown

# Characters of HTML and of a terminal, and the text that a page shows.
NASTY = "<b>&\"'$a\u202eg\x1b[31m\r"
ESCAPED = "<b>&\"'$a\\u202eg\\u001b[31m\\u000d"
VOID = {"meta", "img", "wbr", "br"}


def picture(seed, height=32, width=32):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def row(seed, name=NASTY, neighbors=5, note="query"):
    """Return a query with neighbors; the first two are matches."""
    cells = [Cell("query", array_picture(picture(seed)), name, note, f"query: {name}")]
    for rank in range(neighbors):
        kind = "match" if rank < 2 else "other"
        image = array_picture(picture(9 * seed + rank))
        cells.append(Cell(kind, image, NASTY, f"0.{9 - rank}00", NASTY, marked=True))
    return Row(cells)


def history(epochs):
    return [
        {
            "epoch": epoch,
            "step": 10 * epoch,
            "train/loss": 2 / epoch,
            "train/tightness": 1.5 / epoch,
            "train/contrastive": 0.5 / epoch,
            "train/learning_rate": 0.01 / epoch,
            "test/recall@1/cosine": 0.6 - 0.1 * abs(epoch - 3),
            "test/recall@1/l2": 0.5 - 0.1 * abs(epoch - 3),
            "test/accuracy": 0.9 + 0.01 * epoch,
        }
        for epoch in range(1, epochs + 1)
    ]


def sample(**changes):
    """Return a result with every part of a page."""
    content = {
        "title": NASTY,
        "rows": {
            "embedding, cosine": {"recall@1": 0.6, "recall@2": 0.71234},
            "embedding, l2": {"recall@1": 0.5, "recall@2": 0.75},
            "raw pixels, cosine": {"recall@1": 0.158, "recall@1000": 0.99},
            "raw pixels, l2": {"recall@1000": 1.0},
            "photo to catalog, l2": {"recall@1": 0.7},
        },
        "summary": [("images per second", "1,014"), ("loss", NASTY)],
        "history": history(4),
        "best": history(4)[2],
        "why_kept": "the best by R@1 on the <test> images",
        "reproduce": "python -m x --a='<b>'",
        "flags": "--loss=multi_similarity\n--note=" + NASTY,
    }
    return Result(**content | changes)


BARE = Result("bare", {"embedding, cosine": {"recall@1": 0.25}})
SHOWN = Shown(
    [
        Grid("Retrieval", [row(seed, f"class {seed}") for seed in range(3)]),
        Grid("Confused", [row(3, "a", 0, "R@1 <1> of 2")], "What & why.", [("<a>", ["5"])], "R@1s"),
    ],
    Map((96, 64), 36, [(1.0, 2.0, NASTY)], []),
)


def written(folder, result, shown=SHOWN):
    with mock.patch.object(report, "shown_of_readable", lambda images: shown):
        report.write_report(folder / "report.html", result)
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A page with every part."""
    return written(tmp_path_factory.mktemp("report"), sample())


class Page(html.parser.HTMLParser):
    """A parser that collects elements and attributes and fails on unpaired tags."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def classes(self, name):
        return [a for _, a in self.elements if name in (a.get("class") or "").split()]


def test_the_page_is_self_contained(text):
    page = Page(text)
    assert len(page.all("svg")) == 5
    assert not re.findall(r"https?://", re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    for _, attributes in page.elements:
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("xlink:href", f"#{ids[0]}")[1:] in ids
        assert not any(key.startswith("on") for key in attributes)
    assert not re.search(r"<script|<link|@import|url\((?!#)", text)


def test_given_text_is_escaped_everywhere(text, tmp_path):
    assert "<b>&" not in text and "<a>" not in text
    assert not set(NASTY) & set(text) - set("<b>&\"'$ag[31m")
    page = Page(text)
    # twice in the title, summary, 15 neighbors, the map, and inside the flags' text
    assert sum(piece == ESCAPED for piece in page.texts) == 2 + 1 + 15 + 1
    assert any(piece.endswith("--note=" + ESCAPED) for piece in page.texts)
    assert any(ESCAPED in attributes["alt"] for attributes in page.all("img"))
    rows = BARE.rows | {NASTY: {}}
    page = Page(written(tmp_path, Result("bare", rows)))
    assert ESCAPED in page.texts and ESCAPED in score_table(rows)


def test_the_table_shows_the_scores(text):
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    assert [(name, re.sub("</?td>", "|", cells)) for name, cells in rows] == [
        ("embedding, cosine", "|60.0||71.2||–|"),
        ("embedding, l2", "|50.0||75.0||–|"),
        ("raw pixels, cosine", "|15.8||–||99.0|"),
        ("raw pixels, l2", "|–||–||100.0|"),
        ("photo to catalog, l2", "|70.0||–||–|"),
        ("&lt;a&gt;", "|5|"),
    ]


def test_the_headline_the_summary_and_the_figures(text):
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["60.0", "93.0", "15.8"]
    assert "cosine, kept from epoch 3, the best by R@1 on the &lt;test&gt; images<" in text
    assert "<dt>images per second</dt><dd>1,014</dd>" in text
    labels = [svg["aria-label"] for svg in Page(text).all("svg")]
    assert "accuracy from 91 at epoch 1 to 94 at epoch 4" in labels[1]
    assert labels[-1] == "map of 1 embeddings, 0 of them as pictures"
    for shown in ("R@1 &lt;1&gt; of 2", "What &amp; why. 0 of the 0 neighbors", ">R@1s</summary>",
                  "python -m x --a=&#39;&lt;b&gt;&#39;"):  # fmt: skip
        assert shown in text


def test_missing_parts_are_not_shown(tmp_path):
    text = written(tmp_path, BARE, Shown())
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["25.0"]
    assert "No evaluation was recorded" in text
    for absent in ("raw pixels", "<svg", "<h2>Retrieval", "<details", "<dl", "kept", "ccuracy",
                   "Map of", "The same again"):  # fmt: skip
        assert absent not in text
    Page(text)
    text = written(tmp_path, sample(history=history(1), best=history(1)[0]), Shown())
    assert "There was one evaluation" in text and "<svg" not in text


def test_each_neighbor_has_a_frame_and_a_mark_in_addition_to_color(text):
    page = Page(text)
    assert [len(page.classes(kind)) for kind in ("query", "match", "other")] == [4, 6, 9]
    assert [page.texts.count(mark) for mark in "✓✗"] == [6, 9]
    assert "6 of the 15 neighbors" in text
    assert all(attributes["alt"] for attributes in page.all("img"))
    similarities = [text for text in page.texts if re.fullmatch(r"0\.\d00", text)]
    assert similarities == ["0.900", "0.800", "0.700", "0.600", "0.500"] * 3


@pytest.mark.parametrize(
    ("size", "kind", "stored", "shown", "crisp"),
    [
        ((32, 32), "png", (32, 32), (160, 160), True),
        ((105, 70), "png", (105, 70), (70, 105), False),
        ((400, 200), "jpeg", (320, 160), (80, 160), False),
    ],
)
def test_size_and_format_of_stored_pictures(size, kind, stored, shown, crisp):
    image = picture(0, *size)
    found = array_picture(image)
    prefix, data = found.address.split(",")
    assert prefix == f"data:image/{kind};base64"
    inside = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert inside.shape == (*stored, 3) and (found.size, found.pixels) == (shown, crisp)
    if kind == "png":
        np.testing.assert_array_equal(inside, image)


def test_the_report_does_not_depend_on_matplotlib_settings(text, tmp_path):
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "axes.linewidth": 5}):
        before = dict(matplotlib.rcParams)
        assert written(tmp_path, sample()) == text
        assert dict(matplotlib.rcParams) == before


def test_a_failed_report_keeps_the_previous_report(tmp_path, monkeypatch):
    text = written(tmp_path, BARE)

    def no_space(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space left"):
        written(tmp_path, Result("never there", BARE.rows))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_other_scores_follow_the_recall_columns(tmp_path):
    scores = {"map@r": 0.25, "recall@10": 0.9, "recall@1": 0.6, "r_precision": float("nan")}
    rows = {"embedding, cosine": scores, "raw": {"recall@1": 0.7}}
    assert score_table(rows).split("\n") == [
        "R@K, %                1    10  MAP@R  R-precision",
        "embedding, cosine  60.0  90.0   25.0            –",
        "raw                70.0     –      –            –",
    ]
    curve = Curves({"mine": [(1, 2.0), (2, 1.0)]})
    result = Result("bare", rows, history=None, figures={"Mine": curve})
    text = written(tmp_path, result, Shown())
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == [
        "R@1", "R@10", "MAP@R", "R-precision"
    ]  # fmt: skip
    assert "R-precision is the share" in text and "MAP@R is the mean" in text
    assert text.count("<svg ") == 1 and "evaluation" not in text  # no training curves
