"""Pages: self-contained HTML files that need no network, no JavaScript, and no other file.

Pages link to each other, such as a run's report, its evaluation, and a comparison.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import logging
import os
import pathlib
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jinja2
import numpy as np
from markupsafe import Markup, escape
from PIL import Image

from experiments.options.visible import visible, visible_text
from keras_dml._common.regular_files import MOST_TEXT, read_regular
from keras_dml._files.atomic import replacing

#: Paths of other pages -> their names, plain text.
Links: TypeAlias = Mapping[pathlib.Path, str]
_LOGGER = logging.getLogger("experiments")
_OPEN, _CLOSE = '<nav class="soft">', "</nav>"
_BLOCK = re.compile(f"{re.escape(_OPEN)}(.*?){_CLOSE}", re.DOTALL)
_LINK = re.compile(r'<a href="([^"]*)">([^<]*)</a>')
# Pictures are at most this wide and high on a page, and stored at twice that for dense screens.
_SIDE = 160


class Picture(NamedTuple):
    """A picture that a page contains.

    Attributes:
        address: Its `data:` address.
        size: Width and height on the page; None for the picture's own.
        pixels: Whether its pixels are shown as squares.
    """

    address: str
    size: tuple[int, int] | None = None
    pixels: bool = False


class Cell(NamedTuple):
    """A framed picture with a name and a note.

    Attributes:
        kind: Class of the frame in the style sheet: "query", "match", "other", or "neighbor".
        picture: The picture, if it can be read.
        name: Text below the frame. It may break after each "_" and "/".
        note: Text after the name.
        alt: Text that describes the picture.
        marked: Whether the frame has a mark for a match or for another class.
    """

    kind: str
    picture: Picture | None
    name: str
    note: str | Markup = ""
    alt: str = ""
    marked: bool = False


class Row(NamedTuple):
    """A row of cells with an optional text above it."""

    cells: Sequence[Cell]
    head: str = ""


def breaking(name: str) -> Markup:
    """Return a name as HTML that may break after each "_" and "/"."""
    return Markup(re.sub("([_/])", r"\1<wbr>", str(escape(visible(name)))))


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of all templates. HTML templates escape all values but `Markup`."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.pages"),
        autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"visible": visible, "breaking": breaking}
    return made


def write_page(
    path: str | os.PathLike[str],
    title: str,
    links: Links | None = None,
    template: str = "base.html",
    **values: Any,
) -> None:
    """Write a page under a temporary name, then rename it.

    The same values give the same bytes.

    Args:
        path: The file; its folder exists.
        title: Plain text.
        links: Paths of other pages -> their names. Links to missing files are left out, and links
            that other commands have added to the page stay.
        template: File name of the template.
        **values: Values of the template.
    """
    text = environment().get_template(template).render(
        title=title, links=Markup(links_html(pathlib.Path(path), links or {})),
        **values,
    )  # fmt: skip
    with replacing(path) as unfinished:
        # A file name that is not UTF-8 may be a class name. Show it with question marks.
        unfinished.write_text(visible_text(text), encoding="utf-8", errors="replace", newline="\n")


def address(encoded: bytes, kind: str) -> str:
    """Return the `data:` address of the content of an image file."""
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def array_picture(image: np.ndarray) -> Picture:
    """Return a small image as a PNG with all pixels, or another image as a small JPEG.

    Args:
        image: uint8 `[h, w, 3]`.
    """
    from experiments.pages.pictures import encoded_picture  # imports TensorFlow

    height, width = image.shape[:2]
    longest = max(height, width)
    encoded, kind = encoded_picture(Image.fromarray(image), 2 * _SIDE, whole_up_to=_SIDE)
    # Whole multiples keep pixels square.
    scale = _SIDE // longest if kind == "png" else _SIDE / longest
    size = max(1, round(scale * width)), max(1, round(scale * height))
    return Picture(address(encoded, kind), size, pixels=scale > 1)


def file_picture(source: str | io.BytesIO, max_pixels: int, side: int) -> Picture | None:
    """Return the picture in an image file; None if it cannot be read."""
    from experiments.pages.pictures import thumbnail

    try:
        return Picture(address(*thumbnail(source, max_pixels, side)))
    except (OSError, ValueError):
        return None


def links_html(page: pathlib.Path, links: Links) -> str:
    """Return the links of a page as HTML with relative addresses, including its present links.

    Args:
        page: The page. It may be missing.
        links: Paths of other pages -> their names. Missing pages are left out.
    """
    block = _BLOCK.search(_read(page))
    known = dict(_LINK.findall(block[0] if block else ""))
    for other, text in links.items():
        # A relative address is the same for any form of the path.
        path = pathlib.PurePath(os.path.relpath(other, page.parent)).as_posix()
        known[html.escape(urllib.parse.quote(path))] = html.escape(text)
    shown = [
        f'<a href="{path}">{text}</a>'
        for path, text in known.items()
        if (page.parent / urllib.parse.unquote(html.unescape(path))).is_file()
    ]
    return f"{_OPEN}{' · '.join(shown)}{_CLOSE}"


def _read(page: pathlib.Path) -> str:
    """Return the text of a page; empty if it is missing or not a page of ours."""
    try:
        return read_regular(page, MOST_TEXT).decode()
    except (OSError, ValueError):
        return ""


def add_link(page: pathlib.Path, other: pathlib.Path, text: str) -> None:
    """Add a link to a page, if the page exists.

    A page without a block of links does not change. If the user may not write the page, a warning
    is logged.

    Args:
        page: The page.
        other: The page that the link leads to.
        text: Text of the link.
    """
    written, links = _read(page), links_html(page, {other: text})
    changed = _BLOCK.sub(lambda _: links, written, count=1)
    if changed == written:
        return
    try:
        with replacing(page) as unfinished:
            unfinished.write_text(changed, encoding="utf-8", newline="\n")
    except PermissionError as error:  # another user's page
        _LOGGER.warning("%s cannot be changed to link to %s: %s", page, other, error.strerror)
