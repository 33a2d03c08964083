"""A run's report: one HTML file that needs no network, no JavaScript and no other file."""

import dataclasses
import html
import importlib.resources
import math
import os
import pathlib
import string
import types
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from experiments.report import figures
from experiments.report.baselines import best_baseline
from experiments.report.links import Links, links_html
from experiments.report.retrieval_grid import Neighbor, RetrievalRow, choose_queries, grid_html
from experiments.report.scores import CATALOG, PAPER
from experiments.report.tables import html_table, text_table
from keras_dml._common.errors import ArgumentError
from keras_dml._files.atomic import replacing
from pipelines.visible import visible_text

__all__ = [
    "EMBEDDING",
    "Grid",
    "Neighbor",
    "Report",
    "RetrievalRow",
    "choose_queries",
    "picture_cards",
    "recall_table",
    "write_page",
    "write_report",
]

#: Row name -> {K, or a column's name: fraction}.
Recall: TypeAlias = Mapping[str, Mapping[int | str, float]]
#: Name of the row of `Report.recall` for the headline.
EMBEDDING = "embedding, cosine"

_NO_LINKS: Links = types.MappingProxyType({})


# A line of the summary, or a curve, and what it says.
_TELLS = {
    "NMI": (
        "NMI: what k-means clusters of the embeddings, as many as classes, and the classes know of "
        "each other; 100 % where they are the same. More classes raise it by chance alone."
    ),
    "AMI": (
        "AMI: the same less what chance gives, 0 % for clusters at random: compare by this one."
    ),
    "Jensen-Shannon divergence": (
        "Jensen-Shannon divergence: how far apart the distances of matching and of other pairs "
        "lie; 0 where they are the same, log 2 where they do not overlap."
    ),
    "train/tightness": (
        "Tightness: the part of the loss that draws images of a class together; lower is tighter. "
        "By itself it is lowest where everything is in one place."
    ),
    "train/contrastive": (
        "Contrastive: the part that drives classes apart. Losses differ in scale: watch each over "
        "time, do not compare them between losses."
    ),
}


class Grid(NamedTuple):
    """Queries of a kind: a title and what they are, plain text; HTML to stand under them."""

    title: str
    rows: Sequence[RetrievalRow]
    note: str
    behind: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a report shows.

    Attributes:
        title: what was trained on what.
        recall: row name -> {K: fraction}; holds `"embedding, cosine"` with K = 1, the headline.
            Next to it the headline shows the baseline, as from `best_baseline`, and
            `"paper, cosine"`, if `recall` has them. A name in place of a K, such as `"MAP@R"`,
            adds a column of that name after the others.
        whose: of whom the scores are, where not of the run's own model on unseen images.
        note: the same in sentences.
        summary: (name, text) pairs: sizes, backbone, loss, times.
        history: the objects of `metrics.jsonl` (`epoch`, `train/loss`, `test/recall@1/cosine`
            and so on), in order; any key may be missing in any of them. None: nothing was trained.
        best: the one of `history` whose model was kept. Its `test/accuracy`, where there, stands
            beside the headline.
        why_kept: why that model was kept, such as `"the last"`; "" if unknown.
        retrieval: queries with their neighbours.
        further: more of them, of other kinds.
        map: the embeddings on a plane, an `<svg>` element.
        catalog: queries with their neighbours in the catalog, where there is one.
        reproduce: what to type to get the same, and of what it was made.
        flags: the resolved flags, as in a flag file.
        pictures: title -> SVG text, behind the curves.
        measured: what the curves of scores are of.
    """

    title: str
    recall: Recall
    whose: str = ""
    note: str = ""
    summary: Sequence[tuple[str, str]] = ()
    history: Sequence[Mapping[str, float]] | None = ()
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    why_kept: str = ""
    retrieval: Sequence[RetrievalRow] = ()
    further: Sequence[Grid] = ()
    map: str = ""
    catalog: Sequence[RetrievalRow] = ()
    reproduce: str = ""
    flags: str = ""
    pictures: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measured: str = "test images"


def write_report(
    path: str | os.PathLike[str],
    report: Report,
    links: Links = _NO_LINKS,
) -> None:
    """Writes `report` as one self-contained HTML file; the same report gives the same bytes.

    The retrieval grid follows RankMI (Kemertas et al.), figure 4: each row a query and its
    neighbours, framed green where the class matches and red where it does not.

    Args:
        path: where to; the folder exists. A file already there is replaced at the end, so that
            a report is either whole or the old one.
        report: a `Report`.
        links: as for `write_page`.

    Raises:
        ValueError: if `report.recall` has no R@1 in a row `"embedding, cosine"`, or if an image
            is not uint8 [h, w, 3].
    """
    table = _card("Scores, %", f'<div class="scroll">\n{_table(report.recall)}\n</div>')
    body = [
        _headline(report),
        f'<div class="columns">\n{table}\n{_summary(report.summary, report.history or ())}\n</div>',
        _curves(report),
        grid_html(report.retrieval),
        *(grid_html(grid.rows, grid.title, grid.note, grid.behind) for grid in report.further),
        grid_html(report.catalog, "Retrieval in the catalog"),
        _map(report.map),
        _reproduce(report.reproduce),
        _flags(report.flags),
    ]
    write_page(path, report.title, "\n".join(body), links)


def write_page(
    path: str | os.PathLike[str],
    title: str,
    body: str,
    links: Links = _NO_LINKS,
) -> None:
    """Writes one self-contained HTML page in the reports' style, in one go.

    Args:
        path: where to; the folder exists.
        title: plain text.
        body: HTML.
        links: to other pages. Those to what is not there are left out; those that the page had
            before, as others have added them, stay.
    """
    template = importlib.resources.files("experiments.report") / "page.html.template"
    text = string.Template(template.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), links=links_html(pathlib.Path(path), links), body=body
    )
    # What a file or a folder is called may have come from anybody.
    text = visible_text(text)
    with replacing(path) as unfinished:
        # A file name that is no UTF-8 may have become a class name: shown with question marks.
        unfinished.write_text(text, encoding="utf-8", errors="replace", newline="\n")


def picture_cards(pictures: Mapping[str, str]) -> str:
    """Titled SVG pictures side by side, as HTML; titles without a picture are left out.

    Args:
        pictures: dict, title -> SVG text.
    """
    shown = "\n".join(
        _card(name, f"<figure>{svg}</figure>") for name, svg in pictures.items() if svg
    )
    return f'<div class="columns">\n{shown}\n</div>' if shown else ""


def _card(title: str, content: str) -> str:
    return f'<section class="card">\n<h2>{title}</h2>\n{content}\n</section>'


def recall_table(recall: Recall) -> str:
    """The R@K table as text in aligned columns, for a terminal.

    Args:
        recall: dict, row name -> {K: fraction}, or a name in place of a K, for a column behind the
            others. What a row lacks is shown as a dash.

    Returns:
        str, a header line and a line for each row, percent with one decimal.
    """
    columns, rows = _cells(recall)
    return text_table([["R@K, %", *map(str, columns)], *([name, *cells] for name, cells in rows)])


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f}"


def _cells(recall: Recall) -> tuple[list[int | str], list[tuple[str, list[str]]]]:
    """The columns, every K in order first, and each row's name with its cells as text."""
    every = dict.fromkeys(column for row in recall.values() for column in row)
    names = [column for column in every if isinstance(column, str)]
    ks = sorted(column for column in every if isinstance(column, int))
    columns: list[int | str] = [*ks, *names]
    rows = [(name, [_percent(row.get(c)) for c in columns]) for name, row in recall.items()]
    return columns, rows


def _headline(report: Report) -> str:
    headline = report.recall.get(EMBEDDING, {}).get(1)
    if headline is None:
        raise ArgumentError(
            f"report.recall must hold R@1 in a row {EMBEDDING!r}. "
            f"Received: { ({name: list(row) for name, row in report.recall.items()}) }"
        )
    kept = ""
    if "epoch" in report.best:
        kept = f", kept from epoch {report.best['epoch']:g}"
        kept += f", {html.escape(report.why_kept)}" if report.why_kept else ""
    whose = html.escape(f", {report.whose}") if report.whose else kept
    note = f"\n<p>{html.escape(report.note)}</p>" if report.note else ""
    baseline, of_baseline = best_baseline(report.recall)
    others = {
        "accuracy on the training classes": report.best.get("test/accuracy"),
        f"{baseline}, for comparison": of_baseline,
        "in the paper": report.recall.get(f"{PAPER}, cosine", {}).get(1),
    }
    beside = "".join(
        f'<div><b>{_percent(fraction)}<small> %</small></b><span class="soft">{name}</span></div>'
        for name, fraction in others.items()
        if fraction is not None
    )
    precisions = ""
    if any(isinstance(column, str) for row in report.recall.values() for column in row):
        precisions = (
            " R-precision is the share of matches among the R nearest, where R counts all other "
            "images of the query's class; MAP@R also asks that they come first."
        )
    in_catalog = ""
    if any(name.startswith(CATALOG) for name in report.recall):
        in_catalog = f" {CATALOG.capitalize()}: nearest in the catalog's pictures instead."
    return (
        f'<div class="headline"><div class="main"><b>{_percent(headline)}<small> %</small></b>'
        f'<span class="soft">R@1, cosine{whose}</span></div>{beside}</div>{note}'
        '\n<p class="soft">R@K is the share of queries with at least one other image of their '
        f"class among the K nearest.{precisions}{in_catalog}</p>"
    )


def _table(recall: Recall) -> str:
    names, rows = _cells(recall)
    # Compared as shown: of two cells that read the same, either both are bold or neither.
    columns = zip(*(cells for _, cells in rows))
    best = [
        max((cell for cell in column if cell != "–"), key=float, default=None) for column in columns
    ]
    shown = [
        (
            html.escape(name),
            [f"<strong>{cell}</strong>" if cell == top else cell for cell, top in zip(cells, best)],
        )
        for name, cells in rows
    ]
    head = [name if isinstance(name, str) else f"R@{name}" for name in names]
    return html_table(["", *head], shown)


def _summary(pairs: Sequence[tuple[str, str]], history: Sequence[Mapping[str, float]]) -> str:
    if not pairs:
        return ""
    names = {name for name, _ in pairs} | {key for row in history for key in row}
    told = "".join(f"<p>{text}</p>" for name, text in _TELLS.items() if name in names)
    if told:
        told = f'\n<details class="soft"><summary>What these tell</summary>{told}</details>'
    rows = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(text))}</dd>" for name, text in pairs
    )
    return _card("Run", f"<dl>\n{rows}\n</dl>{told}")


def _curves(report: Report) -> str:
    if report.history is None:
        return picture_cards(report.pictures)
    baseline = best_baseline(report.recall)
    pictures = {
        f"R@1 on the {report.measured}": figures.recall_svg(report.history, report.best, *baseline),
        f"Accuracy on the {report.measured}": figures.lines_svg(
            "accuracy", {"accuracy": report.history}, "test/accuracy", 100, "accuracy, %"
        ),
        "MAP@R on the validated classes": figures.lines_svg(
            "validated", {"MAP@R": report.history}, "test/map@r/cosine", 100, "MAP@R, %"
        ),
        "Training": figures.loss_svg(report.history),
        **report.pictures,
    }
    notes = {0: "No evaluation was recorded.", 1: "There was one evaluation."}
    note = notes.get(len(report.history))
    note = f'<p class="soft">{note}</p>\n' if note else ""
    return note + picture_cards(pictures)


def _map(svg: str) -> str:
    if not svg:
        return ""
    note = (
        "t-SNE puts together what is near in the embedding; distances between groups, and how wide "
        "one is, mean little. Point at a picture or dot to read its class."
    )
    return _card("Map of the test images", f'<p class="soft">{note}</p>\n<figure>{svg}</figure>')


def _reproduce(text: str) -> str:
    return _card("The same again", f"<pre>{html.escape(text)}</pre>") if text else ""


def _flags(flags: str) -> str:
    if not flags:
        return ""
    text = html.escape(flags)
    return f'<details class="card">\n<summary>Flags</summary>\n<pre>{text}</pre>\n</details>'
