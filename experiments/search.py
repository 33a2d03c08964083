"""`python -m experiments.search --index=INDEX --query=IMAGE`: the images that look most alike."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from experiments.options import (
    UsageError,
    option,
    parse,
    run_command,
)
from experiments.options.run_options import ImageLimitOptions
from experiments.options.values import absolute, absolute_place
from experiments.searching.addresses import is_address, parsed_address
from experiments.searching.answer import GROUP_SIMILARITY

if TYPE_CHECKING:
    from experiments.searching.answer import Answer, Conditions
    from experiments.searching.visual_search import VisualSearch

DEFAULT_K = 10
_OF_A_QUERY = ("k", "where", "min_similarity", "group_similarity", "json", "output")
_OF_THE_SERVER = ("host", "port", "allowed_host")
_INDEX, _QUERY, _SERVER = "Index", "Queries", "A local web page"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(ImageLimitOptions):
    """Which index, and what is asked of it."""

    command = "experiments.search"
    intro = """Find the images of an index that look most like yours.

  python -m experiments.search --index=INDEX --query=photo.jpg [--query=other.png]

prints the neighbours and the classes that they are of; --output=FILE.html also writes them with
their pictures to one HTML file, without a network.

  python -m experiments.search --index=INDEX --serve

serves a page onto which you drop an image. Programs may ask it, too, and get JSON:
  curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5&where=class:Milk&min_similarity=0.7'
"""

    index: str | None = option(
        None,
        _INDEX,
        "What python -m experiments.index wrote: its folder, or the store that its --to names: "
        "lancedb:FOLDER, qdrant:URL_or_FOLDER, pgvector:DSN. A store's search is exact. Without "
        "--saved_model its SavedModel is loaded, too: only indexes and stores of people you trust.",
    )
    saved_model: pathlib.Path | None = option(
        None,
        _INDEX,
        "Where its model is now, if it has been moved since. A SavedModel is code that runs with "
        "your rights: only of those you trust.",
    )
    images: str | None = option(
        None,
        _INDEX,
        "Where its images are now, if they have been moved since: a folder, or an address that "
        "Arrow reads, such as s3://BUCKET/FOLDER. An address that the index names is not opened: "
        "give it here.",
    )
    query: tuple[str, ...] = option((), _QUERY, "An image.", repeated=True)
    k: int | None = option(
        None, _QUERY, f"How many neighbours. Default: {DEFAULT_K}.", lower_bound=1
    )
    where: tuple[str, ...] = option(
        (),
        _QUERY,
        "Only images that have a value in a column: class=Milk, folder=Packages, brand=Arla of "
        "one's own --columns. May be repeated: of two values of one column either will do, two "
        "columns must both have theirs. The search is then exact among those.",
        repeated=True,
    )
    min_similarity: float | None = option(
        None,
        _QUERY,
        "Only images that are at least so similar, so that a query of something else finds "
        "nothing. For an index of cosine similarities.",
        lower_bound=-1,
        upper_bound=1,
    )
    group_similarity: float = option(
        GROUP_SIMILARITY,
        _QUERY,
        "Neighbours that are at least so similar to each other, by cosine, are one with a count: a "
        "photograph that was saved more than once. 0: each is one.",
        lower_bound=0,
        upper_bound=1,
    )
    json: bool = option(
        False, _QUERY, "Print JSON, one object, of the same form as the local page's answers."
    )
    output: pathlib.Path | None = option(
        None, _QUERY, "A page of the neighbours with their pictures. Without it none is written."
    )
    serve: bool = option(False, _SERVER, "Serve the page.")
    host: str = option(
        "127.0.0.1",
        _SERVER,
        "127.0.0.1: this computer only; 0.0.0.0: whoever reaches it may search and see the images, "
        "there is no password.",
    )
    allowed_host: tuple[str, ...] = option(
        (),
        _SERVER,
        "A name that the page may be asked by, in addition to localhost, this computer's name, and "
        "addresses: the name of a web server in front of it, not a pattern. May be repeated.",
        repeated=True,
    )
    port: int = option(8000, _SERVER, "0: any free one.", lower_bound=0, upper_bound=65535)


def main(argv: list[str]) -> None:
    """Load; then serve, or search, print and draw."""
    options = parse(SearchOptions, argv)
    index = _checked(options)
    if options.serve:
        # oneDNN keeps the memory of the largest images that ever came: 870 MB of two at 24 million
        # pixels. Without it, which must be said before TensorFlow is imported, 50 MB stay.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    serve = _import_serve() if options.serve else None
    from experiments.searching.visual_search import VisualSearch

    images = absolute_place(options.images) if options.images else None
    search = VisualSearch(index, options.saved_model, images, options.max_pixels)
    with contextlib.closing(search):
        if serve:
            server = serve.open_server(search, options.host, options.port, options.allowed_host)
            serve.run(server, options.host)
        else:
            _answer(search, options)


def _answer(search: VisualSearch, options: SearchOptions) -> None:
    """Search, print and draw."""
    conditions = _conditions(search, options)
    answers = _answers(search, options, conditions)
    if options.output:
        from experiments.searching.search_page import write_neighbors

        write_neighbors(options.output, search, answers, conditions)
    if options.json:
        _print_json(search, answers)
    else:
        _show(search, answers, options.output)


def _checked(options: SearchOptions) -> pathlib.Path | str:
    """The index, a folder or a store's address, where the flags go together."""
    if not options.index:
        raise UsageError("give --index=FOLDER, what python -m experiments.index wrote")
    if bool(options.query) == options.serve:
        raise UsageError("give either --query=IMAGE (once or more) or --serve")
    if "" in options.query:  # a shell's variable that is not set
        raise UsageError("query must not be empty. Received: query=")
    for name in _OF_A_QUERY if options.serve else _OF_THE_SERVER:
        if name in options.given:
            mode = "--query" if options.serve else "--serve"
            raise UsageError(f"leave out --{name}, which is for {mode}")
    for name in options.allowed_host:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise UsageError(
                "allowed_host must be one name, such as photos.example.org, without a port. A "
                "pattern such as * is not supported: pages of any site could then ask by a name of "
                f"their own. Received: allowed_host={name}"
            )
    page = options.output
    if page and (page.is_dir() or not page.parent.is_dir()):
        raise UsageError(
            f"output must be the name of a file, in a folder that exists. Received: output={page}"
        )
    if is_address(options.index):
        parsed_address(options.index, "index")
        return options.index
    return absolute(options.index)


def _import_serve() -> ModuleType:
    try:
        from experiments.searching import serve
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--serve needs {error.name}, which is not installed: pip install 'keras-dml[serve]'"
        ) from error
    return serve


def _answers(
    search: VisualSearch, options: SearchOptions, conditions: Conditions
) -> list[tuple[str, Answer]]:
    """Each query with what is found for it."""
    k = options.k or min(DEFAULT_K, search.num_items)
    if k > search.num_items:
        raise UsageError(
            f"k must be at most the number of images, {search.num_items}. Received: k={k}"
        )
    from experiments.searching.store import StoreError

    answers = []
    for name in map(os.path.expanduser, options.query):
        try:
            encoded = pathlib.Path(name).read_bytes()
        except OSError as error:
            raise UsageError(f"query {name} cannot be read ({error.strerror})") from error
        try:
            answer = search.search(encoded, k, conditions)
        except StoreError:  # not a mistake in the query
            raise
        except ValueError as error:
            raise UsageError(f"query {name} is no image that can be searched: {error}") from error
        answers.append((name, answer))
    return answers


def _conditions(search: VisualSearch, options: SearchOptions) -> Conditions:
    """What the flags ask of results; refused here if the index cannot answer it."""
    from experiments.searching.answer import Conditions

    where = tuple(search.columns.parsed(text, "=", "where") for text in options.where)
    conditions = Conditions(where, options.min_similarity, options.group_similarity)
    search.check(conditions)
    return conditions


def _print_json(search: VisualSearch, answers: Iterable[tuple[str, Answer]]) -> None:
    from experiments.searching.answer import json_of

    # All but ASCII as escapes, so that no name steers a terminal.
    found = [{"query": name, **json_of(answer, search.metric)} for name, answer in answers]
    threshold = {}
    if search.calibration is not None:
        threshold = {"threshold": search.calibration.threshold}
    print(json.dumps({"metric": search.metric, **threshold, "answers": found}, indent=1))


def _show(
    search: VisualSearch, answers: Iterable[tuple[str, Answer]], page: pathlib.Path | None
) -> None:
    from experiments.searching.answer import answer_line
    from experiments.searching.search_page import score_name
    from pipelines.visible import visible

    lines = [f"rank  {score_name(search.metric)}"]
    for name, answer in answers:
        lines.append(visible(name))
        for rank, result in enumerate(answer.results, start=1):
            alike = f"  (and {len(result.alike)} alike)" if result.alike else ""
            match = f"{result.match_in_words:<10}" if result.match_in_words else ""
            lines.append(f"{rank:>4}  {result.score:.4f}  {match}{visible(result.path)}{alike}")
        if said := answer_line(answer):
            lines.append(visible(f"      {said}"))
    # A name may hold what the terminal's encoding cannot say, bytes that are no UTF-8 for instance.
    encoding = sys.stdout.encoding or "utf-8"
    if search.calibration is not None:
        lines.append(f"match: {search.calibration.in_words()}")
    lines.append(f"pictures: {page}" if page else "pictures: give --output=FILE.html")
    text = "\n".join(lines)
    print(text.encode(encoding, "replace").decode(encoding))


if __name__ == "__main__":
    sys.exit(run_command(main))
