"""The site: formulas of docstrings, and what `docs/build.py` makes of the pages."""

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FORMULAS = runpy.run_path(str(ROOT / "docs" / "formulas.py"))


@pytest.mark.parametrize(
    ("formula", "latex"),
    [
        ("Σ_{j∈P_i} D_ij²", r"\sum _{j∈P_{i}} D_{ij}^{2}"),
        ("h⁺_l H⁻_l / n_{y_i}", "h^{+}_{l} H^{-}_{l} / n_{y_{i}}"),
        ("½ ‖z_i − c_k‖²", r"\frac{1}{2} \left‖ z_{i} - c_{k} \right‖ ^{2}"),
        ("KL(p ‖ m) + KL(q ‖ m)", r"\text{KL}(p ‖ m) + \text{KL}(q ‖ m)"),
        ("−log p_ai · |P_i|", r"-\operatorname{log} p_{ai} \cdot  \left| P_{i} \right|"),
        ("A_i = P_i ∪ {i}", r"A_{i} = P_{i} ∪ \lbrace i \rbrace"),
        ("J_ij ≥ min_overlap", r"J_{ij} ≥ \text{min_overlap}"),
        ("min_N D, n_class, 10⁻⁶", r"\operatorname{min}_{N} D, n_\text{class}, 10^{-6}"),
        ("z_i z_iᵀ", r"z_{i} z_{i}^\top"),
    ],
)
def test_a_formula_in_plain_text_becomes_latex(formula, latex):
    assert FORMULAS["latex"](formula) == latex
    assert FORMULAS["with_formulas"](f"With `{formula}`:", "${}$") == f"With ${latex}$:"


@pytest.mark.parametrize(
    "code", ["[n, t − start]", "y_true", "val_recall@1", "loss(z, zᵀ) == 2", '"a_b"', "index.n_k"]
)
def test_code_stays_code(code):
    assert FORMULAS["with_formulas"](f"With `{code}`.", "${}$") == f"With `{code}`."


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in (
        "sphinx",
        "myst_parser",
        "sphinx_copybutton",
        "pydata_sphinx_theme",
        "jupytext",
    ):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "build.py"), str(folder)]
    subprocess.run(command, check=True, cwd=ROOT)
    return folder / "site"


def text(page):
    return page.read_text("utf-8")


def pages(site):
    return [page for page in site.rglob("*.html") if "_static" not in page.parts]


@pytest.mark.slow
def test_formulas_are_typeset_without_a_script(site):
    loss = text(site / "api" / "losses" / "MultiSimilarityLoss.html")
    assert loss.count("<math") >= 3 and "<code" not in loss[loss.index("tightness") :][:60]
    theory = text(site / "guides" / "theory.html")
    assert theory.count('<div class="formula"><math') == 5
    for page in pages(site):
        outside_code = re.sub(r"<pre>.*?</pre>", "", text(page), flags=re.DOTALL)
        assert not re.search(r"\\(frac|sum|text)\b|<script[^>]*mathjax", outside_code), page


@pytest.mark.slow
def test_arguments_with_one_description_share_an_entry(site):
    page = " ".join(text(site / "api" / "losses" / "TripletLoss.html").split())
    assert page.count("The triplets consist of the pairs that") == 1
    assert "<strong>reduction, name, dtype, mining, relation</strong>" in page
    assert "Alias for field number" not in text(site / "api" / "metrics.html")


@pytest.mark.slow
def test_code_scrolls_and_the_buttons_copy_only_code(site):
    styles = text(site / "_static" / "site.css")
    assert "pre-wrap" not in styles and "div.highlight pre" in styles
    script = text(site / "_static" / "copybutton.js")
    assert "const COPYBUTTON_SELECTOR = 'div:not(.highlight-text) > div.highlight > pre'" in script
    theory = text(site / "guides" / "theory.html")
    assert theory.count("highlight-text") == theory.count("highlight-python") > 0


@pytest.mark.slow
def test_pages_have_an_icon(site):
    for page in pages(site):
        [icon] = re.findall(r'<link rel="icon" href="([^"]+)"', text(page)) or [""]
        assert (page.parent / icon).is_file(), page


FROM_ELSEWHERE = re.compile(
    r"""(src|srcset)="?(https?:)?//|<link[^>\n]+"?(https?:)?//|@import[^;\n]*//"""
    r"""|url\(["']?(https?:)?//"""
)


@pytest.mark.slow
def test_pages_load_no_file_from_another_host(site):
    styles = list(site.rglob("*.css"))
    assert styles
    for path in [*site.rglob("*.html"), *styles]:
        assert not FROM_ELSEWHERE.search(text(path)), path


@pytest.mark.slow
def test_no_text_of_the_reference_renders_as_a_quotation(site):
    """A wrong indentation in a docstring makes a quotation of text or code."""
    reference = list((site / "api").rglob("*.html"))
    assert reference
    for page in reference:
        assert "<blockquote" not in text(page), page


@pytest.mark.slow
def test_tutorials_and_first_guides_link_to_a_notebook(site):
    with_notebooks = set()
    for page in pages(site):
        for link in re.findall(
            r'<a class="reference download[^>]*href="([^"]+\.ipynb)"', text(page)
        ):
            with_notebooks.add(page.relative_to(site).with_suffix("").as_posix())
            cells = json.loads(text(page.parent / link))["cells"]
            assert "".join(cells[0]["source"]).startswith("# ")
    tutorials = {f"tutorials/{path.stem}" for path in (ROOT / "docs/pages/tutorials").glob("*.md")}
    assert with_notebooks == {"guides/photographs", "guides/keras", *tutorials}


SEARCH = """
const fs = require("fs"), vm = require("vm"), [folder, query] = process.argv.slice(1);
const page = { getElementById: () => null, addEventListener: () => {} };
const window = vm.createContext({ document: page, URLSearchParams, _: (text) => text,
  _ready: () => {}, SPHINX_HIGHLIGHT_ENABLED: false });
window.window = window;
window.location = { search: "?q=" + encodeURIComponent(query) };
const files = ["_static/base-stemmer", "_static/english-stemmer", "_static/language_data",
  "_static/searchtools", "searchindex"];
const source = files.map((file) => fs.readFileSync(`${folder}/${file}.js`, "utf-8")).join("\\n");
vm.runInContext(source + "\\n;this.results = Search._performSearch(...Search._parseQuery(" +
  JSON.stringify(query) + "));", window);
console.log(JSON.stringify(window.results.map((result) => result[1]).reverse()));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="the search is a script: it needs Node.js")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("triplet", "keras_dml.losses.TripletLoss"),
        ("triplet loss", "keras_dml.losses.TripletLoss"),
        ("arcface", "keras_dml.losses.ArcFaceLoss"),
        ("recall", "keras_dml.metrics.recall_at_k"),
        ("heic", "Errors and what they mean"),
    ],
)
def test_the_search_finds_names_first(site, query, first):
    command = ["node", "-e", SEARCH, str(site), query]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(found.stdout)[0] == first, json.loads(found.stdout)[:5]
