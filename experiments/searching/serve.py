"""The search page: a small web server for one index. Needs Flask, waitress, and TensorFlow.

A client can only send an image, the number of an item, a count, and conditions. The server opens no
file that a client names.
"""

import functools
import io
import ipaddress
import logging
import secrets
import socket
import urllib.parse
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar

import flask
import flask.typing
import waitress
from werkzeug.exceptions import HTTPException

from experiments.options.errors import UsageError
from experiments.options.visible import visible
from experiments.pages.page import environment
from experiments.pages.pictures import thumbnail
from experiments.searching.answer import Answer, Conditions, json_of, score_name
from experiments.searching.store import StoreError
from experiments.searching.visual_search import BusyError, VisualSearch

# One server of waitress, or several for a name with several addresses.
Server: TypeAlias = Any
N = TypeVar("N", int, float)
MOST_BYTES = 16 * 2**20
# The server reads larger uploads up to this size, so that the client sees the answer.
_MOST_READ = 8 * MOST_BYTES
MOST_NEIGHBORS = 100
_COUNTS = (5, 10, 20, 50, MOST_NEIGHBORS)
_EXAMPLES = 20
MOST_CONDITIONS = 20
"""The number of different conditions on columns."""
MOST_VALUES = 500
"""The number of values of a column on the page."""
_BUSY = "Too many searches at once: try again in a few seconds."
_NO_STORE = "The store that holds the images does not answer: try again later."
_SECONDS_TO_ARRIVE = 60
_SECONDS_BETWEEN_LOOKS = 5
_KEPT_PICTURES = 2000


def create_app(
    search: VisualSearch, host: str = "127.0.0.1", allowed_hosts: Sequence[str] = ()
) -> flask.Flask:
    """Create the web application.

    `GET /` is the page (`/?example=ITEM` shows the neighbors of an item). `POST /search?k=10`
    takes an image in the form field `image` and answers with JSON. `GET /search?item=ITEM`
    searches an item. Both take `where=COLUMN:VALUE` (repeatable), `min_similarity`, and
    `group_similarity`. `GET /columns` lists columns and values, and `GET /image/ITEM` is a
    picture.

    Args:
        search: The search.
        host: The address of the server, also a valid name in requests.
        allowed_hosts: Other valid names.
    """
    app = flask.Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's own provider
    _guard(app, {name.lower() for name in (host, *allowed_hosts)})
    app.register_error_handler(HTTPException, _explained)
    app.register_error_handler(BusyError, lambda _: ({"error": _BUSY}, 503, {"Retry-After": "5"}))
    app.register_error_handler(StoreError, lambda _: ({"error": _NO_STORE}, 503))
    _add_page(app, search)
    _add_search(app, search)
    _add_pictures(app, search)
    return app


def _guard(app: flask.Flask, names: Collection[str]) -> None:
    """Refuse requests from other sites, and restrict browsers."""

    @app.before_request
    def refuse_other_sites() -> None:
        if not _is_ours(flask.request.host, names):
            flask.abort(403, "This name is not the server's: use its IP address or localhost.")
        # A page of another site can send forms, although it cannot read the answer.
        origin = flask.request.headers.get("Origin")
        is_other = origin is not None and _name_and_port(origin) != flask.request.host
        if is_other or _is_from_another_site(flask.request):
            flask.abort(403, "Requests from pages of other sites are refused.")

    @app.after_request
    def restrict_browsers(response: flask.Response) -> flask.Response:
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'")
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        # Item numbers can change at the next start.
        response.headers["Cache-Control"] = "no-cache"
        return response


def _explained(error: HTTPException) -> flask.typing.ResponseReturnValue:
    """Answer an error with JSON."""
    text = error.description
    if error.code == 413:
        text = f"The upload is too large: at most {MOST_BYTES // 2**20} MB."
    return {"error": text}, error.code or 500


def _add_page(app: flask.Flask, search: VisualSearch) -> None:
    """Add `GET /`, and `GET /columns` with the most frequent values of each column."""
    step = max(1, search.num_items // _EXAMPLES)
    examples = range(0, search.num_items, step)[:_EXAMPLES]
    columns = []
    for name in search.columns.names:
        counts = search.columns.counts(name)
        values = [{"value": value, "count": count} for value, count in counts[:MOST_VALUES]]
        others = max(0, len(counts) - MOST_VALUES)
        columns.append({"name": name, "values": values, "others": others})

    @app.get("/")
    def page() -> flask.Response:
        if "example" in flask.request.args:
            _item(flask.request.args["example"], search)
        nonce = secrets.token_urlsafe(16)
        template = environment().get_template("search.html")
        response = flask.make_response(
            template.render(
                nonce=nonce,
                score=score_name(search.metric),
                search=search,
                # Show names that are not UTF-8 with question marks.
                folder=visible(search.images.name.encode(errors="replace").decode()),
                model=visible("/".join(search.saved_model.parts[-2:])),
                examples=[(item, visible(search.path(item))) for item in examples],
                most_bytes=MOST_BYTES,
                counts=_COUNTS,
            )
        )
        response.headers["Content-Security-Policy"] = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
            "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return response

    @app.get("/columns")
    def list_columns() -> dict[str, Any]:
        return {"columns": columns}


def _add_search(app: flask.Flask, search: VisualSearch) -> None:
    """Add `/search` for uploads and for items."""

    @app.post("/search")
    def search_upload() -> dict[str, Any]:
        files = flask.request.files
        if flask.request.form or [name for name, _ in files.items(multi=True)] != ["image"]:
            flask.abort(400, "Send one image as the field `image` of a form, and no other field.")
        encoded = files["image"].read()
        k, conditions = _count(search), _conditions(search)
        try:
            answer = search.search(encoded, k, conditions)
        except StoreError:
            raise
        except ValueError as error:
            flask.abort(400, f"This file cannot be searched: {str(error).rstrip('.')}.")
        return _json(search, answer)

    @app.get("/search")
    def search_item() -> dict[str, Any]:
        item, k = _item(flask.request.args.get("item", ""), search), _count(search)
        conditions = _conditions(search)
        try:
            answer = search.search_item(item, k, conditions)
        except StoreError:
            raise
        except (OSError, ValueError):
            flask.abort(404, "The file of this item is gone, or is no longer an image.")
        return {"path": search.path(item), **_json(search, answer)}


def _add_pictures(app: flask.Flask, search: VisualSearch) -> None:
    """Add `GET /image/ITEM`. The server keeps the last pictures."""
    picture = functools.lru_cache(_KEPT_PICTURES)(
        lambda item: thumbnail(io.BytesIO(search.read(item)), search.max_pixels)
    )

    @app.get("/image/<item>")
    def image(item: str) -> flask.typing.ResponseReturnValue:
        try:
            encoded, kind = picture(_item(item, search))
        except (OSError, ValueError):
            flask.abort(404, "The file of this item is gone, or cannot be shown.")
        response = flask.Response(encoded, mimetype=f"image/{kind}")
        response.add_etag()
        return response.make_conditional(flask.request)


def open_server(
    search: VisualSearch, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> Server:
    """Bind a server. The arguments are the arguments of `create_app`.

    Raises:
        UsageError: The address cannot be bound.
    """
    # waitress logs every request that waits.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    try:
        return waitress.create_server(
            create_app(search, host, allowed_hosts),
            host=host,
            port=port,
            threads=16,
            max_request_body_size=_MOST_READ,
            connection_limit=400,
            channel_timeout=_SECONDS_TO_ARRIVE,
            cleanup_interval=_SECONDS_BETWEEN_LOOKS,
            asyncore_use_poll=True,  # select is limited to 1024 files
            ident=None,
        )
    except OSError as error:
        raise UsageError(
            f"--host={host} --port={port} cannot be bound ({error.strerror}). Use another --port."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"host must be a name or address of this computer, but got {host}."
        ) from error


def run(server: Server, host: str) -> None:
    """Answer requests until Ctrl-C."""
    listening = getattr(server, "effective_listen", None)  # a name with several addresses
    port = listening[0][1] if listening else server.effective_port
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{port} (Ctrl-C ends it)", flush=True)
    server.run()
    print("ended")


def _is_from_another_site(request: flask.Request) -> bool:
    """Return whether a browser marks a request as another site's, except for a link to the page.

    Images and scripts of another site send no Origin. Browsers send `Sec-Fetch-Site` only over
    HTTPS and to this computer.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    kind = (request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest"))
    is_link = request.endpoint == "page" and kind == ("navigate", "document")
    return site not in ("same-origin", "none") and not is_link


def _name_and_port(origin: str) -> str | None:
    """Return name and port of an Origin header, or None if the header is invalid."""
    try:
        return urllib.parse.urlsplit(origin).netloc
    except ValueError:
        return None


def _is_ours(requested: str, names: Collection[str]) -> bool:
    """Return whether the Host header of a request names this server.

    After DNS rebinding, a stranger's page sends the stranger's name. IP addresses cannot be
    rebound.
    """
    try:
        name = urllib.parse.urlsplit(f"//{requested}").hostname or ""
        if name in ("localhost", socket.gethostname().lower(), *names):
            return True
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _number(text: str, kind: Callable[[str], N], low: float, high: float) -> N | None:
    """Parse a number within bounds. Return None for other texts."""
    try:
        number = kind(text)
    except ValueError:
        return None
    return number if low <= number <= high else None


def _count(search: VisualSearch) -> int:
    """Return the requested number of neighbors."""
    count = _number(flask.request.args.get("k", "10"), int, 1, MOST_NEIGHBORS)
    if count is None:
        flask.abort(400, f"k must be a number from 1 to {MOST_NEIGHBORS}.")
    return min(count, search.num_items)


def _item(text: str, search: VisualSearch) -> int:
    item = _number(text, int, 0, search.num_items - 1)
    if item is None:
        flask.abort(404, f"An item is a number below {search.num_items}.")
    return item


def _conditions(search: VisualSearch) -> Conditions:
    """Return the conditions of a request."""
    args = flask.request.args
    numbers: dict[str, Any] = {}
    for name, low in (("min_similarity", -1), ("group_similarity", 0)):
        if name in args:
            numbers[name] = _number(args[name], float, low, 1)
            if numbers[name] is None:
                flask.abort(400, f"{name} must be a number from {low} to 1.")
    texts = dict.fromkeys(args.getlist("where"))  # without repeats
    if len(texts) > MOST_CONDITIONS:
        flask.abort(400, f"where must have at most {MOST_CONDITIONS} conditions.")
    try:
        where = tuple(search.columns.parsed(text, ":") for text in texts)
        conditions = Conditions(where, **numbers)
        search.check(conditions)
    except ValueError as error:
        flask.abort(400, str(error))
    return conditions


def _json(search: VisualSearch, answer: Answer) -> dict[str, Any]:
    found = json_of(answer, search.metric)
    for neighbor in found["neighbours"]:
        neighbor["image"] = f"/image/{neighbor['item']}"
    return found | search.facts
