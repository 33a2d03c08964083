import base64
import html
import html.parser
import io
import os
import re

import matplotlib
import numpy as np
import pytest
from PIL import Image
from processes import run_python

from experiments.evaluation.figures import Curves
from experiments.evaluation.result import Result
from experiments.evaluation.scores import score_table
from experiments.pages.report import write_report
from experiments.pages.retrieval import Grid, Neighbor, Shown, retrieval_row

NASTY = "<b>&\"'$title"
VOID = {"meta", "img", "wbr", "br"}


def picture(seed, height=32, width=32):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


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
        }
        for epoch in range(1, epochs + 1)
    ]


def sample(grids=None, map="", **changes):
    """Return a result and its pictures."""
    rows = [
        retrieval_row(
            picture(row),
            f"class {row}",
            [Neighbor(picture(9 * row + i), NASTY, 0.9 - 0.1 * i, i < 2) for i in range(5)],
        )
        for row in range(3)
    ]
    content = {
        "title": "glyphs · multi_similarity",
        "rows": {
            "embedding, cosine": {"recall@1": 0.6, "recall@2": 0.71234},
            "embedding, l2": {"recall@1": 0.5, "recall@2": 0.75},
            "raw pixels, cosine": {"recall@1": 0.158, "recall@1000": 0.99},
            "raw pixels, l2": {"recall@1000": 1.0},
        },
        "summary": [("images per second", "1,014"), ("loss", NASTY)],
        "history": history(4),
        "best": history(4)[2],
        "flags": "--loss=multi_similarity\n--note=" + NASTY,
    }
    grids = [Grid("Retrieval", rows)] if grids is None else grids
    return Result(**content | changes), Shown(grids, map)


def written(tmp_path, report):
    result, shown = report
    write_report(tmp_path / "report.html", result, shown=shown)
    return (tmp_path / "report.html").read_text(encoding="utf-8")


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


def test_the_page_is_self_contained(tmp_path):
    text = written(tmp_path, sample())
    page = Page(text)
    assert len(page.all("svg")) == 3
    assert not re.findall(r"https?://", re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    for _, attributes in page.elements:
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("xlink:href", f"#{ids[0]}")[1:] in ids
        assert not any(key.startswith("on") for key in attributes)
    assert not re.search(r"<script|<link|@import|url\((?!#)", text)


def test_given_text_is_escaped_everywhere(tmp_path):
    text = written(
        tmp_path, sample(title=NASTY, rows={"embedding, cosine": {"recall@1": 1}, NASTY: {}})
    )
    assert "<b>&" not in text
    page = Page(text)
    # twice in the title, then table row, summary, 15 neighbors, and inside the flags' text
    assert sum(piece == NASTY for piece in page.texts) == 2 + 1 + 1 + 15
    assert any(piece.endswith("--note=" + NASTY) for piece in page.texts)
    assert any(NASTY in attributes["alt"] for attributes in page.all("img"))


def test_the_table_shows_the_scores_with_the_best_of_each_column_in_bold(tmp_path):
    text = written(tmp_path, sample())
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["60.0", "15.8"]
    assert "kept from epoch 3" in text
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    assert [(name, re.sub("</?td>", "|", cells)) for name, cells in rows] == [
        ("embedding, cosine", "|<strong>60.0</strong>||71.2||–|"),
        ("embedding, l2", "|50.0||<strong>75.0</strong>||–|"),
        ("raw pixels, cosine", "|15.8||–||99.0|"),
        ("raw pixels, l2", "|–||–||<strong>100.0</strong>|"),
    ]
    assert "<dt>images per second</dt><dd>1,014</dd>" in text


@pytest.mark.parametrize(("cosine", "better"), [(0.338, "l2"), (0.42, "cosine"), (None, "l2")])
def test_the_headline_compares_with_the_better_raw_pixel_score(cosine, better, tmp_path):
    recall = {
        "embedding, cosine": {"recall@1": 0.5},
        "raw pixels, l2": {"recall@1": 0.406, "recall@2": 0.5},
    }
    recall["raw pixels, cosine"] = {"recall@2": 0.6} if cosine is None else {"recall@1": cosine}
    text = written(tmp_path, sample(rows=recall))
    value = 42.0 if better == "cosine" else 40.6
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["50.0", str(value)]
    assert f">raw pixels, {better}, for comparison<" in text
    labels = [svg["aria-label"] for svg in Page(text).all("svg")]
    assert f"raw pixels, {better} {value:.3g}" in labels[0]


def test_the_headline_explains_the_choice_of_the_epoch(tmp_path):
    text = written(tmp_path, sample(why_kept="the best by R@1 on the <test> images"))
    said = "R@1, cosine, kept from epoch 3, the best by R@1 on the &lt;test&gt; images<"
    assert said in text


def test_accuracy_is_shown_if_it_was_measured(tmp_path):
    rows = [{**row, "test/accuracy": 0.9 + 0.01 * row["epoch"]} for row in history(4)]
    text = written(tmp_path, sample(history=rows, best=rows[2]))
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["60.0", "93.0", "15.8"]
    labels = [svg["aria-label"] for svg in Page(text).all("svg")]
    assert len(labels) == 4
    assert "accuracy from 91 at epoch 1 to 94 at epoch 4" in labels[1]


def test_missing_parts_are_not_shown(tmp_path):
    text = written(tmp_path, (Result("bare", {"embedding, cosine": {"recall@1": 0.25}}), Shown()))
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["25.0"]
    assert "No evaluation was recorded" in text
    for absent in ("raw pixels", "<svg", "<h2>Retrieval", "<details", "<dl", "kept", "ccuracy"):
        assert absent not in text
    Page(text)


def test_each_neighbor_has_a_frame_and_a_mark_in_addition_to_color(tmp_path):
    text = written(tmp_path, sample())
    page = Page(text)
    assert [len(page.classes(kind)) for kind in ("query", "match", "other")] == [3, 6, 9]
    assert [page.texts.count(mark) for mark in "✓✗"] == [6, 9]
    assert "6 of the 15 neighbors" in text
    assert len(page.all("img")) == 18
    assert all(attributes["alt"] for attributes in page.all("img"))
    similarities = [text for text in page.texts if re.fullmatch(r"0\.\d00", text)]
    assert similarities == ["0.900", "0.800", "0.700", "0.600", "0.500"] * 3


@pytest.mark.parametrize(
    ("size", "kind", "stored", "shown", "crisp"),
    [
        ((32, 32), "png", (32, 32), ("160", "160"), True),
        ((105, 70), "png", (105, 70), ("105", "70"), False),
        ((400, 200), "jpeg", (320, 160), ("160", "80"), False),
    ],
)
def test_size_and_format_of_stored_pictures(tmp_path, size, kind, stored, shown, crisp):
    image = picture(0, *size)
    text = written(tmp_path, sample(grids=[Grid("Retrieval", [retrieval_row(image, "a", [])])]))
    (attributes,) = Page(text).all("img")
    prefix, data = attributes["src"].split(",")
    assert prefix == f"data:image/{kind};base64"
    inside = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert inside.shape == (*stored, 3)
    assert (attributes["height"], attributes["width"]) == shown
    assert (attributes.get("class") == "pixels") == crisp
    if kind == "png":
        np.testing.assert_array_equal(inside, image)


def test_the_report_does_not_depend_on_matplotlib_settings(tmp_path):
    first = written(tmp_path, sample())
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "axes.linewidth": 5}):
        before = dict(matplotlib.rcParams)
        assert written(tmp_path, sample()) == first
        assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_pyplot_is_not_imported():
    code = (
        "import sys\n"
        "from experiments.evaluation.figures import Curves\n"
        "from experiments.pages.figures import svg\n"
        "svg('Loss', Curves({'loss': [(1, 2.0), (2, 1.0)]}))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    run_python("-c", code)


@pytest.mark.slow
def test_a_failed_report_keeps_the_previous_report(tmp_path, monkeypatch):
    text = written(tmp_path, sample())
    with pytest.raises(ValueError, match=r"uint8 \[h, w, 3\], but got float64 \[4, 4, 3\]"):
        retrieval_row(np.zeros((4, 4, 3)), "a", [])
    with pytest.raises(ValueError, match=r"R@1 in a row 'embedding, cosine'.*recall@2"):
        written(tmp_path, sample(rows={"embedding, cosine": {"recall@2": 0.5}}))

    def no_space(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(OSError, match="no space left"):
        written(tmp_path, sample(title="never there"))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_control_characters_in_names_are_escaped(tmp_path):
    name, shown = "a\u202egnp.\x1b[31m\u2066\r", r"a\u202egnp.\u001b[31m\u2066\u000d"
    row = retrieval_row(picture(0), name, [Neighbor(picture(1), f"{name}\n", 0.9, True)])
    recall = {"embedding, cosine": {"recall@1": 1.0}, name: {}}
    report = sample(
        title=name,
        rows=recall,
        summary=[(name, name)],
        grids=[Grid("Retrieval", [row])],
        flags=f"--a={name}",
    )
    text = written(tmp_path, report)
    assert not set(name) & set(text) - set("agnp.[31m")
    # twice in the title, then table, summary, alt text, title and name of two cells, flags
    assert text.count(shown) == 2 + 1 + 2 + 6 + 1 and shown + r"\u000a" in text
    assert shown in score_table(recall)


def test_a_single_evaluation_is_described(tmp_path):
    text = written(tmp_path, sample(history=history(1), best=history(1)[0]))
    assert "There was one evaluation" in text
    assert not Page(text).all("svg")


def test_other_scores_follow_the_recall_columns(tmp_path):
    recall = {
        "embedding, cosine": {
            "map@r": 0.25,
            "recall@10": 0.9,
            "recall@1": 0.6,
            "r_precision": float("nan"),
        },
        "raw": {"recall@1": 0.7},
    }
    assert score_table(recall).split("\n") == [
        "R@K, %                1    10  MAP@R  R-precision",
        "embedding, cosine  60.0  90.0   25.0            –",
        "raw                70.0     –      –            –",
    ]
    curve = Curves({"mine": [(1, 2.0), (2, 1.0)]})
    text = written(tmp_path, sample(rows=recall, history=None, figures={"Mine": curve}))
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == [
        "R@1", "R@10", "MAP@R", "R-precision"
    ]  # fmt: skip
    assert "R-precision is the share" in text and "MAP@R is the mean" in text
    assert text.count("<svg ") == 1 and "evaluation" not in text  # no training curves


def test_grids_the_map_and_the_command(tmp_path):
    row = retrieval_row(picture(0), "a", [Neighbor(picture(0), "b", 0.5, False)], "R@1 <1> of 2")
    grid = Grid("Classes <i>", [row], "What & why.", [("<a>", ["5"])], "Recall of 1 class")
    text = written(
        tmp_path,
        sample(grids=[grid], map="<svg></svg>", reproduce="python -m x --a='<b>'"),
    )
    assert "R@1 &lt;1&gt; of 2" in text
    assert "What &amp; why. 0 of the 1 neighbors shown match" in text
    assert "<summary>Recall of 1 class</summary>" in text and ">&lt;a&gt;</th><td>5<" in text
    assert "Map of the test images" in text
    assert "python -m x --a=&#39;&lt;b&gt;&#39;" in text
    bare = written(tmp_path, (Result("bare", {"embedding, cosine": {"recall@1": 0.25}}), Shown()))
    assert "Map of" not in bare
    assert "The same again" not in bare
