"""The search page: a small web server for one index. Needs Flask, waitress, and TensorFlow.

A client can only send an image, the number of an item, a count, and conditions. The server opens no
file that a client names.
"""

import functools
import io
import ipaddress
import logging
import math
import secrets
import socket
import urllib.parse
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import flask
import flask.typing
import waitress
from werkzeug.exceptions import HTTPException

from experiments.evaluation.pictures import thumbnail
from experiments.options.errors import UsageError
from experiments.options.visible import visible
from experiments.pages.page import environment
from experiments.searching.answer import ANYTHING, Answer, Conditions, json_of
from experiments.searching.search_page import score_name
from experiments.searching.store import StoreError
from experiments.searching.visual_search import BusyError, VisualSearch

# One server of waitress, or several for a name with several addresses.
Server: TypeAlias = Any
MOST_BYTES = 16 * 2**20
# The server reads larger uploads up to this size, so that the client sees the answer.
_MOST_READ = 8 * MOST_BYTES
MOST_NEIGHBORS = 100
_COUNTS = (5, 10, 20, 50, MOST_NEIGHBORS)
_EXAMPLES = 20
# The number of values of a column on the page.
_VALUES = 500
_THREADS = 16
# With more waiting requests, searches are refused.
_MOST_WAITING = 64
_CONNECTIONS = 400
_SECONDS_TO_ARRIVE = 60
_SECONDS_BETWEEN_LOOKS = 5
_NO_STORE = "The store that holds the images does not answer: try again later."
_KEPT_PICTURES = 2000
# The parameters of each function that answers requests.
_OF_RESULTS = ("k", "where", "min_similarity", "group_similarity")
_PARAMETERS = {
    "page": ("example", "k", "where", "min_similarity"),
    "search_upload": _OF_RESULTS,
    "search_item": ("item", *_OF_RESULTS),
}
_IMAGE = "image"
_ECHOED = 60


def create_app(
    search: VisualSearch,
    host: str = "127.0.0.1",
    allowed_hosts: Sequence[str] = (),
    waiting: Callable[[], int] = lambda: 0,
) -> flask.Flask:
    """Create the web application.

    `GET /` is the page (`/?example=ITEM` shows the neighbors of an item). `POST /search?k=10`
    takes an image in the form field `image` and answers with JSON. `GET /search?item=ITEM`
    searches an item. Both take `where=COLUMN:VALUE` (repeatable), `min_similarity`, and
    `group_similarity`. `GET /columns` lists columns and values, and `GET /image/ITEM` is a
    picture. Unknown and repeated parameters are refused with status 400.

    Args:
        search: the search.
        host: the address of the server, also a valid name in requests.
        allowed_hosts: other valid names.
        waiting: returns the number of waiting requests. With too many, searches are refused with
            503.
    """
    app = flask.Flask(__name__, static_folder=None, template_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's own provider
    _guard(app, {name.lower() for name in (host, *allowed_hosts)})
    _check_parameters(app)
    _add_page(app, search)
    _add_search(app, search, waiting)
    _add_columns(app, search)
    _add_pictures(app, search)
    return app


def _guard(app: flask.Flask, names: Collection[str]) -> None:
    """Refuse requests from other sites, restrict browsers, and answer errors with JSON."""

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
    def close_to_others(response: flask.Response) -> flask.Response:
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'")
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        # Item numbers can change at the next start.
        response.headers["Cache-Control"] = "no-cache"
        return response

    @app.errorhandler(HTTPException)
    def explain(error: HTTPException) -> flask.typing.ResponseReturnValue:
        text = error.description
        if error.code == 413:
            text = f"The upload is too large: at most {MOST_BYTES // 2**20} MB."
        return {"error": text}, error.code or 500

    @app.errorhandler(BusyError)
    def wait(error: BusyError) -> flask.typing.ResponseReturnValue:
        text = "Too many searches at once: try again in a few seconds."
        return {"error": text}, 503, {"Retry-After": "5"}


def _check_parameters(app: flask.Flask) -> None:
    """Refuse unknown and repeated parameters."""

    @app.before_request
    def refuse_unknown_parameters() -> None:
        asked = flask.request
        if asked.url_rule is None:  # unknown path
            return
        known = _PARAMETERS.get(asked.url_rule.endpoint, ())
        for name, values in asked.args.lists():
            if name not in known:
                place = asked.url_rule.rule
                flask.abort(400, _unknown(f"parameter {_short(name)}", place, known))
            if len(values) > 1 and name != "where":
                flask.abort(400, f"{name} is given {len(values)} times: give it once.")


def _check_form() -> None:
    """Check that the form of an upload has one image and nothing else."""
    form, files = flask.request.form, flask.request.files
    if _IMAGE not in files:
        flask.abort(400, "Send an image as the field `image` of a form.")
    for name in (*form, *files):
        if name in _OF_RESULTS:
            flask.abort(400, f"{name} belongs in the address: {flask.request.path}?{name}=…")
        if name != _IMAGE:
            flask.abort(400, _unknown(f"field {_short(name)}", "the form", (_IMAGE,)))
    if len(files.getlist(_IMAGE)) + len(form.getlist(_IMAGE)) > 1:
        flask.abort(400, "Send one image: the field `image` is given more than once.")


def _unknown(what: str, where: str, known: Collection[str]) -> str:
    return f"Unknown {what}: {where} takes {', '.join(known) or 'no parameters'}."


def _short(name: str) -> str:
    """Return a client's name for a message."""
    return f"'{visible(name[:_ECHOED])}{'…' * (len(name) > _ECHOED)}'"


def _add_page(app: flask.Flask, search: VisualSearch) -> None:
    """Add `GET /`."""

    @app.get("/")
    def page() -> flask.Response:
        _check_page(search)
        nonce = secrets.token_urlsafe(16)
        step = max(1, search.num_items // _EXAMPLES)
        examples = range(0, search.num_items, step)[:_EXAMPLES]
        response = flask.make_response(
            environment()
            .get_template("search.html")
            .render(
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


def _add_search(app: flask.Flask, search: VisualSearch, waiting: Callable[[], int]) -> None:
    """Add `/search` for uploads and for items."""

    def refuse_if_many_wait() -> None:
        if waiting() > _MOST_WAITING:
            raise BusyError

    @app.post("/search")
    def search_upload() -> dict[str, Any]:
        refuse_if_many_wait()
        _check_form()
        file = flask.request.files[_IMAGE]
        encoded, k, conditions = file.read(), _count(search), _conditions(search)
        try:
            answer = search.search(encoded, k, conditions)
        except StoreError:
            flask.abort(503, _NO_STORE)
        except ValueError as error:
            flask.abort(400, f"This file cannot be searched: {error}.")
        return _json(search, answer)

    @app.get("/search")
    def search_item() -> dict[str, Any]:
        refuse_if_many_wait()
        item, k = _item(flask.request.args.get("item", ""), search), _count(search)
        conditions = _conditions(search)
        try:
            answer = search.search_item(item, k, conditions)
        except StoreError:
            flask.abort(503, _NO_STORE)
        except (OSError, ValueError):
            flask.abort(404, "The file of this item is gone, or no image any more.")
        return {"path": search.path(item), **_json(search, answer)}


def _add_columns(app: flask.Flask, search: VisualSearch) -> None:
    """Add `GET /columns`: the most frequent values of each column, with counts."""
    counted = [(name, search.columns.counts(name)) for name in search.columns.names]
    columns = [
        {
            "name": name,
            "values": [{"value": value, "count": count} for value, count in counts[:_VALUES]],
            "others": max(0, len(counts) - _VALUES),
        }
        for name, counts in counted
    ]

    @app.get("/columns")
    def list_columns() -> dict[str, Any]:
        return {"columns": columns}


def _add_pictures(app: flask.Flask, search: VisualSearch) -> None:
    """`GET /image/ITEM`; the last ones made are kept."""
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
    """Bind a server. The arguments are those of `create_app`.

    Raises:
        UsageError: if the address cannot be bound.
    """
    # waitress logs every request that waits.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    app = create_app(search, host, allowed_hosts, lambda: len(server.task_dispatcher.queue))
    try:
        server = waitress.create_server(
            app,
            host=host,
            port=port,
            threads=_THREADS,
            max_request_body_size=_MOST_READ,
            connection_limit=_CONNECTIONS,
            channel_timeout=_SECONDS_TO_ARRIVE,
            cleanup_interval=_SECONDS_BETWEEN_LOOKS,
            asyncore_use_poll=True,  # select is limited to 1024 files
            ident=None,
        )
    except OSError as error:
        raise UsageError(
            f"--host={host} --port={port} cannot be bound ({error.strerror}); another --port?"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"host must be a name or address of this computer. Received: host={host}"
        ) from error
    return server


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
    asked = (request.headers.get(f"Sec-Fetch-{what}") for what in ("Mode", "Dest"))
    is_link = request.endpoint == "page" and tuple(asked) == ("navigate", "document")
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


def _number(text: str, most: int) -> int | None:
    """Parse a whole number from 0 to `most`. Return None for other texts."""
    # Python does not parse numbers with thousands of digits.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else most + 1
    return number if number <= most else None


def _count(search: VisualSearch) -> int:
    """Return the requested number of neighbors."""
    count = _number(flask.request.args.get("k", "10"), MOST_NEIGHBORS)
    if not count:
        flask.abort(400, f"k must be a number from 1 to {MOST_NEIGHBORS}.")
    return min(count, search.num_items)


def _check_page(search: VisualSearch) -> None:
    """Check the parameters in the page's address, which its script would ignore."""
    given = flask.request.args
    if _count(search) and given.get("k", "10") not in map(str, _COUNTS):
        flask.abort(400, f"k must be one of {', '.join(map(str, _COUNTS))} on the page.")
    _conditions(search)
    if "example" in given:
        _item(given["example"], search)


def _conditions(search: VisualSearch) -> Conditions:
    """Return the conditions of a request."""
    given = flask.request.args
    asked = {"min_similarity": (-1.0, None), "group_similarity": (0.0, ANYTHING.group_similarity)}
    numbers: dict[str, float | None] = {}
    for name, (least, default) in asked.items():
        numbers[name] = default
        if name in given:
            numbers[name] = _between(given[name], least)
            if numbers[name] is None:
                flask.abort(400, f"{name} must be a number from {least:g} to 1.")
    try:
        where = tuple(search.columns.parsed(text, ":", "where") for text in given.getlist("where"))
        conditions = Conditions(where, numbers["min_similarity"], numbers["group_similarity"] or 0)
        search.check(conditions)
    except ValueError as error:
        flask.abort(400, f"{error}.")
    return conditions


def _between(text: str, least: float) -> float | None:
    """Parse a number from `least` to 1. Return None for other texts."""
    try:
        number = float(text) if text.isascii() and len(text) < 40 and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    return number if least <= number <= 1 else None


def _item(text: str, search: VisualSearch) -> int:
    item = _number(text, search.num_items - 1)
    if item is None:
        flask.abort(404, f"An item is a number below {search.num_items}.")
    return item


def _json(search: VisualSearch, answer: Answer) -> dict[str, Any]:
    found = json_of(answer, search.metric)
    for neighbor in found["neighbours"]:
        neighbor["image"] = f"/image/{neighbor['item']}"
    if search.calibration is not None:
        found["threshold"] = search.calibration.threshold
    return found
