"""The report of a run, its model card, and links between pages."""

import base64
import dataclasses
import io
import os
import pathlib
import re
import shlex
import xml.etree.ElementTree as ElementTree
from unittest import mock

import matplotlib
import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

import keras_dml
from experiments.evaluation.figures import Curves
from experiments.evaluation.measurement import Measurement
from experiments.evaluation.result import Result, rows_of
from experiments.evaluation.score_table import score_text
from experiments.options import RunOptions, parse
from experiments.pages import report
from experiments.pages.embedding_map import Map
from experiments.pages.model_card import (
    NO_THRESHOLD,
    fenced,
    license_of_weights,
    model_card,
    update_final_model,
    update_threshold,
)
from experiments.pages.page import Cell, Row, add_link, array_picture, links_html, write_page
from experiments.pages.retrieval import Grid, Shown
from experiments.pages.run_pages import made_by
from pipelines import EvaluationTransform, ImageTable
from pipelines.split import Split

# Characters of HTML and of a terminal, and the text that a page shows.
NASTY = "<b>&\"'$a\u202eg\x1b[31m\r"
ESCAPED = "<b>&\"'$a\\u202eg\\u001b[31m\\u000d"
VOID = "meta|img|wbr|br"


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


HISTORY = [
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
    for epoch in range(1, 5)
]
# A result with every part of a page.
FULL = Result(
    title=NASTY,
    measurements=rows_of(
        {
            "embedding, cosine": {"recall@1": 0.6, "recall@2": 0.71234},
            "embedding, l2": {"recall@1": 0.5, "recall@2": 0.75},
            "raw pixels, cosine": {"recall@1": 0.158, "recall@1000": 0.99},
            "raw pixels, l2": {"recall@1000": 1.0},
            "photo to catalog, l2": {"recall@1": 0.7},
        }
    ),
    summary=[("images per second", "1,014"), ("loss", NASTY)],
    history=HISTORY,
    best=HISTORY[2],
    why_kept="the best by R@1 on the <test> images",
    reproduce="python -m x --a='<b>'",
    flags="--loss=multi_similarity\n--note=" + NASTY,
)
BARE = Result("bare", [Measurement("recall", 0.25, 1, "cosine")])
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
    return written(tmp_path_factory.mktemp("report"), FULL)


def parsed(text):
    """Return the page as XML, which has no unpaired tags. HTML does not close `VOID`."""
    _, _, elements = text.partition(">")  # after the document type
    return ElementTree.fromstring(re.sub(rf"<((?:{VOID})\b[^>]*)>", r"<\1/>", elements))


def attributes_of(text, tag):
    """Return the attributes of each element with this tag; "*" means every element."""
    return [element.attrib for element in parsed(text).findall(f".//{{*}}{tag}")]


def test_the_page_is_self_contained(text):
    assert len(attributes_of(text, "svg")) == 5
    assert not re.findall(r"https?://", re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text))
    found = attributes_of(text, "*")
    ids = [attributes["id"] for attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids)) > 0
    for attributes in found:
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("{http://www.w3.org/1999/xlink}href", f"#{ids[0]}")[1:] in ids
        assert not any(key.startswith("on") for key in attributes)
    assert not re.search(r"<script|<link|@import|url\((?!#)", text)


def test_given_text_is_escaped_everywhere(text, tmp_path):
    assert "<b>&" not in text and "<a>" not in text
    assert not set(NASTY) & set(text) - set("<b>&\"'$ag[31m")
    texts = list(parsed(text).itertext())
    # twice in the title, summary, 15 neighbors, the map, and inside the flags' text
    assert texts.count(ESCAPED) == 2 + 1 + 15 + 1
    assert any(piece.endswith("--note=" + ESCAPED) for piece in texts)
    assert any(ESCAPED in attributes["alt"] for attributes in attributes_of(text, "img"))
    scores = [*BARE.measurements, Measurement("recall", 0.5, 1, "l2", part=NASTY)]
    other = parsed(written(tmp_path, Result("bare", scores)))
    assert f"{ESCAPED}, l2" in other.itertext() and ESCAPED in score_text(scores)


def test_the_headline_the_summary_and_the_figures(text):
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["60.0", "93.0", "15.8"]
    assert "cosine, kept from epoch 3, the best by R@1 on the &lt;test&gt; images<" in text
    assert "<dt>images per second</dt><dd>1,014</dd>" in text
    assert '<th scope="row">embedding, cosine</th><td>60.0</td><td>71.2</td><td>–</td>' in text
    labels = [attributes["aria-label"] for attributes in attributes_of(text, "svg")]
    assert "accuracy from 91 at epoch 1 to 94 at epoch 4" in labels[1]
    assert labels[-1] == "map of 1 embeddings, 0 of them as pictures"
    assert "What &amp; why. 0 of the 0 neighbors" in text and ">R@1s</summary>" in text
    assert "python -m x --a=&#39;&lt;b&gt;&#39;" in text


def test_the_report_begins_with_its_conclusions(tmp_path):
    conclusions = ["Training gains no more.", "R@1 24.0 % is below <raw> pixels."]
    text = written(tmp_path, dataclasses.replace(FULL, conclusions=conclusions))
    first, second = text.index("<p>Training gains no more.</p>"), text.index("below &lt;raw&gt;")
    assert text.index("</h1>") < first < second < text.index('class="headline"')


def test_missing_parts_are_not_shown(tmp_path):
    text = written(tmp_path, BARE, Shown())
    assert re.findall(r"<b>([\d.]+)<small> %", text) == ["25.0"]
    assert "No evaluation was recorded" in text
    for absent in ("raw pixels", "<svg", "<h2>Retrieval", "<details", "<dl", "kept", "Map of"):
        assert absent not in text
    one_epoch = dataclasses.replace(FULL, history=HISTORY[:1], best=HISTORY[0])
    text = written(tmp_path, one_epoch, Shown())
    assert "There was one evaluation" in text and "<svg" not in text


def test_each_neighbor_has_a_frame_and_a_mark_in_addition_to_color(text):
    classes = [attributes.get("class", "").split() for attributes in attributes_of(text, "*")]
    of_kind = {kind: sum(kind in each for each in classes) for kind in ("query", "match", "other")}
    assert of_kind == {"query": 4, "match": 6, "other": 9}
    texts = list(parsed(text).itertext())
    assert (texts.count("✓"), texts.count("✗")) == (6, 9)
    assert "6 of the 15 neighbors" in text and texts.count("0.500") == 3
    assert all(attributes["alt"] for attributes in attributes_of(text, "img"))


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
        assert written(tmp_path, FULL) == text
        assert dict(matplotlib.rcParams) == before


def test_other_scores_follow_the_recall_columns(tmp_path):
    scores = {"map@r": 0.25, "recall@10": 0.9, "recall@1": 0.6, "r_precision": float("nan")}
    rows = rows_of({"embedding, cosine": scores, "raw, l2": {"recall@2": 0.7}})
    curve = Curves({"mine": [(1, 2.0), (2, 1.0)]})
    result = Result("bare", rows, history=None, figures={"Mine": curve})
    text = written(tmp_path, result, Shown())
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == [
        "R@1", "R@2", "R@10", "MAP@R", "R-precision"
    ]  # fmt: skip
    assert "R-precision is the share" in text and "MAP@R is the mean" in text
    assert text.count("<svg ") == 1 and "evaluation" not in text  # no training curves


def test_the_command_repeats_the_run_and_versions_are_listed(tmp_path):
    flags = tmp_path / "some flags.txt"
    flags.write_text("--loss=triplet\n--dataset=glyphs\n")
    command, versions = made_by(flags, ["--trust_code"]).split("\n")
    _, _, _, *words = shlex.split(command)
    assert words == [f"--flagfile={flags}", "--trust_code", "--output_dir=AGAIN"]
    assert f"keras_dml {keras_dml.__version__}" in versions
    assert re.search(r"keras 3\.\d+", versions)
    if (pathlib.Path(keras_dml.__file__).parents[1] / ".git").exists():
        assert re.search("commit [0-9a-f]{12}", versions)


def test_a_page_links_to_existing_pages(tmp_path):
    run, other = tmp_path / "a run", tmp_path / "others"
    for folder in (run, other):
        folder.mkdir()
    report, page = run / "report.html", other / "50 % & more.html"
    write_page(report, "A run", {page: "Comparison"})
    assert "<a " not in report.read_text()
    write_page(page, "Comparison", {report: "Its run"})
    assert '<a href="../a%20run/report.html">Its run</a>' in page.read_text()
    add_link(report, page, "Compared & more")
    add_link(report, run / ".." / "others" / page.name, "Compared & more")  # no duplicate
    link = '<a href="../others/50%20%25%20%26%20more.html">Compared &amp; more</a>'
    assert report.read_text().count("<a ") == 1 and link in report.read_text()
    # A rewritten page keeps its added links. Links to deleted pages disappear.
    write_page(report, "The run, again")
    assert link in report.read_text()
    page.unlink()
    add_link(report, report, "Itself")
    assert links_html(report, {}) == '<nav class="soft"><a href="report.html">Itself</a></nav>'


def test_pages_without_a_place_for_links_do_not_change(tmp_path):
    old = tmp_path / "old.html"
    for content in (b"<h1>\xff</h1>", b"<h1>Old</h1>"):
        old.write_bytes(content)
        add_link(old, old, "Itself")
        assert old.read_bytes() == content
    add_link(tmp_path / "none.html", old, "Old")
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_in_the_place_of_a_page_is_not_opened(tmp_path):
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    os.mkfifo(page)
    write_page(other, "Other")
    add_link(page, other, "Other")
    assert page.is_fifo()
    write_page(page, "A page")
    assert "A page" in page.read_text()


OPTIONS = parse(RunOptions, ["run", "--dataset=glyphs", "--weights=none", "--data_dir=/of/mine"])
TABLE = ImageTable.from_arrays(np.zeros((4, 8, 8, 3), np.uint8), [0, 0, 1, 1])
SPLIT = Split(TABLE, TABLE, same_classes=True)
CARD = model_card(
    "mine", {"File": "`f`"}, OPTIONS, SPLIT,
    EvaluationTransform(8, (9, 10)), "R@1 is 1", example="f(x)",
)  # fmt: skip


def test_a_threshold_and_the_final_model_are_written_once(tmp_path):
    path = tmp_path / "card.md"
    update_threshold(path, "From 0.5 on.")
    assert not path.exists()
    for card in ("# another card\n", CARD):
        path.write_text(card, encoding="utf-8")
        update_threshold(path, "From 0.5 on.")
        changed = path.read_text(encoding="utf-8")
        assert changed == card.replace(NO_THRESHOLD, "From 0.5 on.")
    for _ in range(2):
        update_final_model(path, "refit/saved_model")
    text = path.read_text(encoding="utf-8")
    assert text.count("- Final model, of every class: `refit/saved_model`\n\n## Prepro") == 1


def test_names_in_a_card_have_no_markup():
    names = ["<img src=x onerror=f()>", "![x](http://a.example/b)", "`*c*`\n# d", "www.e.com", "f"]
    table = ImageTable.from_arrays(np.zeros((5, 8, 8, 3), np.uint8), range(5), names)
    options = dataclasses.replace(OPTIONS, dataset="``<b>\n# x", weights="<b>\n```\n<b>")
    split = Split(table, table, same_classes=True)
    table = fenced(f"{names}\n```\n<b>")
    card = model_card("<i>mine`", {}, options, split, EvaluationTransform(8), table)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(card)
    inner = [child for token in tokens for child in token.children or []]
    assert {token.type for token in inner} == {"text", "code_inline"}
    assert not any("html" in token.type for token in tokens)
    shown = [token.content for token in inner if token.type == "code_inline"]
    assert shown[:6] == [
        "<i>mine`", "``<b>\\u000a# x", *names[:2], "`*c*`\\u000a# d", "www.e.com"
    ]  # fmt: skip
    scores, recipe = (token.content for token in tokens if token.type == "fence")
    assert scores.endswith("\n```\n<b>\n") and "--dataset=``<b>\n# x\n" in recipe


def test_a_recipe_names_no_file_of_the_machine(tmp_path, monkeypatch):
    (tmp_path / "preset").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [
        *(
            "--texts=secret/a.csv",
            "--data_dir=secret",
            "--cache_dir=/secret",
            "--weights=secret.h5",
        ),
        *("--measured_in=secret", "--backbone=hub:secret/net", "--candidates=catalog"),
        *("--candidate_backbone=hub:preset", "--candidate_weights=~/secret", "--import_modules=s"),
    ]
    options = parse(RunOptions, ["run", *words])
    card = model_card("mine", {}, options, SPLIT, EvaluationTransform(8), "")
    assert "secret" not in card and "import_modules" not in card
    for flag in ("backbone=hub:FOLDER", "weights=FILE"):
        assert f"\n--{flag}\n" in card and f"\n--candidate_{flag}\n" in card
    for name in ("hub:dinov2_base", "hub:hf://owner/net", "resnet50"):
        public = dataclasses.replace(options, backbone=name)
        card = model_card("mine", {}, public, SPLIT, EvaluationTransform(8), "")
        assert f"\n--backbone={name}\n" in card


@pytest.mark.parametrize(
    ("backbone", "weights", "words"),
    [
        ("resnet50", "none", "random weights"),
        ("resnet50", "imagenet", "keras.io/api/applications"),
        ("resnet50_v1_5", "imagenet", "of `resnet50_v1_5` by torchvision"),
        ("efficientnet_lite0", "packaged", "(Apache-2.0)"),
        ("hub:dinov2_base", "imagenet", "`hub:dinov2_base`, which has their license"),
        ("resnet50", "mine.h5", "in a file, of unknown license"),
        ("hub:hf://owner/net", "none", "`hub:hf://owner/net`, which"),
        ("hub:/secret/net", "imagenet", "`hub:FOLDER`, which has their license"),
        ("secret/net.keras", "imagenet", "`FILE.keras`, which has their license"),
    ],
)
def test_licenses(backbone, weights, words):
    options = dataclasses.replace(OPTIONS, backbone=backbone, weights=weights)
    assert words in license_of_weights(options)
