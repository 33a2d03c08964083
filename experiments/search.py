"""`python -m experiments.search --index=INDEX --query=IMAGE`: find the most similar images."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from experiments.options import UsageError, parse, run_command
from experiments.options.values import absolute, absolute_place
from experiments.searching.addresses import is_address, parsed_address
from experiments.searching.search_options import DEFAULT_K, SearchOptions, check_search
from keras_dml._common.extras import needing

if TYPE_CHECKING:
    from experiments.searching.answer import Answer, Conditions
    from experiments.searching.visual_search import VisualSearch


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
    with contextlib.closing(search):
        if options.serve:
            server = serve.open_server(search, options.host, options.port, options.allowed_host)
            serve.run(server, options.host)
        else:
            _answer(search, options)


def _answer(search: VisualSearch, options: SearchOptions) -> None:
    """Answer the queries, and print the neighbors."""
    from experiments.searching.answer import Conditions, answers_text, json_of

    where = tuple(search.columns.parsed(text, "=") for text in options.where)
    conditions = Conditions(where, options.min_similarity, options.group_similarity)
    search.check(conditions)
    answers = _answers(search, options, conditions)
    if options.json:
        # JSON escapes all characters but ASCII, so that no file name can control a terminal.
        found = [{"query": name, **json_of(answer, search.metric)} for name, answer in answers]
        known = {} if search.calibration is None else {"threshold": search.calibration.threshold}
        print(json.dumps({"metric": search.metric, **known, "answers": found}, indent=1))
        return
    # A name can have characters that the terminal's encoding lacks.
    encoding = sys.stdout.encoding or "utf-8"
    text = answers_text(search.metric, answers)
    if search.calibration is not None:
        text += f"\nmatch: {search.calibration.in_words()}"
    print(text.encode(encoding, "replace").decode(encoding))


def _answers(
    search: VisualSearch, options: SearchOptions, conditions: Conditions
) -> list[tuple[str, Answer]]:
    """Return each query with its answer."""
    from experiments.searching.store import StoreError

    k = options.k or min(DEFAULT_K, search.num_items)
    if k > search.num_items:
        raise UsageError(
            f"k must be at most the number of images, {search.num_items}, but got {k}."
        )
    answers = []
    for name in map(os.path.expanduser, options.query):
        try:
            encoded = pathlib.Path(name).read_bytes()
        except OSError as error:
            raise UsageError(f"query {name} cannot be read ({error.strerror})") from error
        try:
            answers.append((name, search.search(encoded, k, conditions)))
        except StoreError:  # not a mistake in the query
            raise
        except ValueError as error:
            raise UsageError(f"query {name} cannot be searched: {error}") from error
    answers += [(text, search.search_text(text, k, conditions)) for text in options.query_text]
    return answers


if __name__ == "__main__":
    sys.exit(run_command(main))
