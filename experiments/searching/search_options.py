"""The options of `experiments.search`."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from experiments.options import UsageError, option
from experiments.options.run_options import ImageLimitOptions
from experiments.options.together import check_together
from experiments.searching.answer import GROUP_SIMILARITY

DEFAULT_K = 10
_QUERY, _SERVER = "Queries", "Local web page"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions(ImageLimitOptions):
    """The index, the queries, and the local page.

    Attributes:
        index: Folder of experiments.index, or a store: lancedb:FOLDER, qdrant:URL, pgvector:DSN. A
            search in a store is exact. The index names its SavedModel, which is code: use only
            indexes and stores that you trust.
        saved_model: Folder of the model, if you have moved it. A SavedModel is code that runs with
            your rights. Use only models that you trust.
        images: Folder of the images, if you have moved it, or an address such as
            s3://BUCKET/FOLDER. An address in the index is only opened if you set it here.
        query: Image file. Repeatable.
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

  python -m experiments.search --index=INDEX --query=photo.jpg [--query=other.png]

prints the neighbors and their classes.

  python -m experiments.search --index=INDEX --serve

serves a page onto which you drop an image. Programs can query the server and get JSON:
  curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5&where=class:Milk&min_similarity=0.7'
"""

    group = "Index"

    index: str = option(None, required=True)
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
