"""`python -m experiments.search --index=INDEX --query=IMAGE`: find the most similar images."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments import typed
from experiments.options import UsageError, check_together, one_line, option, parse, run_command
from experiments.options.conversions import absolute, absolute_place
from experiments.options.run_options import ImageLimitOptions
from experiments.searching.addresses import SEARCHED_FORMS, is_address, parsed_address
from experiments.searching.answer import GROUP_SIMILARITY, Answer, Conditions, answers_text, json_of
from keras_dml._common.extras import needing
from pipelines.image_files import read_image

if TYPE_CHECKING:
    from experiments.searching.visual_search import VisualSearch

DEFAULT_K = 10
_QUERY, _SERVER = "Queries", "Local web page"
_INDEX = (
    f"Folder of keras-dml index, or a store: {SEARCHED_FORMS}. A search in a store is exact. The "
    "index names its SavedModel, which is code: use only indexes and stores that you trust."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(ImageLimitOptions):
    """The index, the queries, and the local page.

    Attributes:
        saved_model: Folder of the model, if you have moved it. A SavedModel is code that runs with
            your rights. Use only models that you trust.
        images: Folder of the images, if you have moved it, or an address such as
            s3://BUCKET/FOLDER. An address in the index is only opened if you set it here.
        query: Image file, or a folder of image files. Repeatable.
        query_text: Words. Repeatable. Needs a query_model that takes text.
        query_model: Folder of a SavedModel for the queries, if the index has the candidates of two
            encoders. It maps the bytes of image files, or text, to embeddings. A SavedModel is code
            that runs with your rights. Default: the model of the index.
        k: Number of neighbors. Default: 10.
        where: Search only images with a value in a column, for example class=Milk, folder=Packages,
            or brand=Arla. Repeatable. Two values of one column: either value. Two columns: both.
            The search is exact.
        min_similarity: Smallest similarity of a neighbor. Only for an index of cosine similarities.
        group_similarity: Cosine similarity from which neighbors count as copies of one image. 0: no
            grouping.
        json: Print one JSON object, as the server does.
        serve: Serve the page.
        host: Address of the server. 127.0.0.1: only this computer. 0.0.0.0: every computer that can
            connect can search and see the images, without a password.
        allowed_host: Another name of the server, for example the name of a web server in front of
            it. Repeatable. Localhost, this computer's name, and IP addresses are always allowed.
        port: Port of the server. 0: any free port.
    """

    command = "experiments.search"
    intro = """Find the images of an index that are most similar to your images.

  keras-dml search --index=INDEX --query=photo.jpg [--query=other.png]

prints the neighbors and their classes.

  keras-dml search --index=INDEX --serve

serves a page onto which you drop an image. Programs can query the server and get JSON:
  curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5&where=class:Milk&min_similarity=0.7'
"""

    group = "Index"

    index: str = option(None, text=_INDEX, required=True)
    saved_model: pathlib.Path | None = option(None)
    images: str | None = option(None)
    query: tuple[str, ...] = option((), _QUERY, repeated=True)
    query_text: tuple[str, ...] = option((), _QUERY, repeated=True, needs="query_model")
    query_model: pathlib.Path | None = option(
        None, _QUERY, command_line_only=True, not_with=("saved_model", "serve")
    )
    k: int | None = option(None, _QUERY, lower_bound=1, not_with=("serve",))
    where: tuple[str, ...] = option((), _QUERY, repeated=True, not_with=("serve",))
    min_similarity: float | None = option(
        None, _QUERY, lower_bound=-1, upper_bound=1, not_with=("serve",)
    )
    group_similarity: float = option(
        GROUP_SIMILARITY, _QUERY, lower_bound=0, upper_bound=1, not_with=("serve",)
    )
    json: bool = option(False, _QUERY, not_with=("serve",))
    serve: bool = option(False, _SERVER)
    host: str = option("127.0.0.1", _SERVER, needs="serve")
    allowed_host: tuple[str, ...] = option((), _SERVER, repeated=True, needs="serve")
    port: int = option(8000, _SERVER, lower_bound=0, upper_bound=65535, needs="serve")


def check_search(options: SearchOptions) -> None:
    """Check the flags that depend on each other."""
    check_together(options)
    if bool(options.query or options.query_text) == options.serve:
        raise UsageError("Set either --query=IMAGE (repeatable) or --serve.")
    for name in options.allowed_host:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise UsageError(
                "allowed_host must be one name without a port, such as photos.example.org, but "
                f"got {name}. A pattern such as * would let pages of any site query the server."
            )


def main(argv: list[str]) -> None:
    """Load the index, and serve it or answer the queries."""
    options = parse(SearchOptions, argv)
    check_search(options)
    index: pathlib.Path | str = options.index
    if is_address(options.index):
        parsed_address(options.index, "index")
    else:
        index = absolute(options.index)
    if options.serve:
        # Set before TensorFlow is imported. oneDNN keeps the memory of the largest images: 870 MB
        # after two images of 24 million pixels, instead of 50 MB.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        with needing("serve", "--serve"):
            from experiments.searching import serve
    from experiments.searching.visual_search import VisualSearch

    images = absolute_place(options.images) if options.images else None
    search = VisualSearch(
        index, options.saved_model, images, options.max_pixels, options.query_model
    )
    if search.not_calibrated:
        print(f"note: {typed(search.not_calibrated)}", file=sys.stderr)
    with contextlib.closing(search):
        if options.serve:
            server = serve.open_server(search, options.host, options.port, options.allowed_host)
            serve.run(server, options.host)
        else:
            _answer(search, options)


def _answer(search: VisualSearch, options: SearchOptions) -> None:
    """Answer the queries, and print the neighbors."""
    where = tuple(search.columns.parsed(text, "=") for text in options.where)
    conditions = Conditions(where, options.min_similarity, options.group_similarity)
    search.check(conditions)
    answers = _answers(search, options, conditions)
    if options.json:
        # JSON escapes all characters but ASCII, so that no file name can control a terminal.
        found = [{"query": name, **json_of(answer, search.metric)} for name, answer in answers]
        print(json.dumps({"metric": search.metric, **search.facts, "answers": found}, indent=1))
        return
    # A name can have characters that the terminal's encoding lacks.
    encoding = sys.stdout.encoding or "utf-8"
    text = answers_text(search.metric, answers)
    if search.calibration is not None:
        text += f"\nmatch: {search.calibration.in_words()}"
    if search.map is not None:
        text += f"\nmap: {search.map.in_words}"
    print(text.encode(encoding, "replace").decode(encoding))


def _answers(
    search: VisualSearch, options: SearchOptions, conditions: Conditions
) -> list[tuple[str, Answer]]:
    """Return each query with its answer."""
    from experiments.searching.store import StoreError

    k = min(options.k or DEFAULT_K, search.num_items)
    if options.k is not None and k < options.k:
        print(f"note: k is {k}, the number of images, not {options.k}", file=sys.stderr)
    answers = []
    for name, in_folder in _query_files(options.query):
        try:
            encoded = read_image(name, options.max_pixels)
        except OSError as error:
            if not in_folder:
                raise UsageError(f"query {name} cannot be read ({error.strerror})") from error
            logging.getLogger("experiments").warning("%s is left out: %s", name, error.strerror)
            continue
        try:
            answers.append((name, search.search(encoded, k, conditions)))
        except StoreError:  # not a mistake in the query
            raise
        except ValueError as error:
            if not in_folder:
                raise UsageError(f"query {name} cannot be searched: {error}") from error
            logging.getLogger("experiments").warning("%s is left out: %s", name, one_line(error))
    answers += [(text, search.search_text(text, k, conditions)) for text in options.query_text]
    return answers


def _query_files(queries: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the image files of the queries, and whether each is from a folder.

    Raises:
        UsageError: A folder has no images.
    """
    from pipelines.datasets.folder import EXTENSIONS, walk_images, warn_of_left_out

    for query in map(os.path.expanduser, queries):
        if not os.path.isdir(query):
            yield query, False
            continue
        left_out: dict[str, str] = {}
        walked = walk_images(query, collections.Counter(), left_out)
        files = sorted(os.path.join(path, name) for path, names in walked for name in names)
        warn_of_left_out(query, left_out)
        if not files:
            raise UsageError(
                f"query must be an image, or a folder with {', '.join(EXTENSIONS)} files, but got "
                f"{query}."
            )
        yield from ((file, True) for file in files)


if __name__ == "__main__":
    sys.exit(run_command(main))
