"""Links between pages: relative, in both directions, and only to existing files."""

from experiments.pages.page import add_link, links_html, write_page


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
    add_link(report, run / "nowhere.html", "Nothing")
    assert report.read_text().count("<a ") == 1
    # A rewritten page keeps its added links. Links to deleted pages disappear.
    write_page(report, "The run, again")
    assert link in report.read_text()
    page.unlink()
    add_link(report, report, "Itself")
    assert links_html(report, {}) == '<nav class="soft"><a href="report.html">Itself</a></nav>'


def test_pages_without_a_place_for_links_do_not_change(tmp_path):
    old = tmp_path / "old.html"
    old.write_bytes(b"<h1>\xff</h1>")
    add_link(old, old, "Itself")
    add_link(tmp_path / "none.html", old, "Old")
    old.write_text("<h1>Old</h1>")
    add_link(old, old, "Itself")
    assert old.read_text() == "<h1>Old</h1>"
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]
