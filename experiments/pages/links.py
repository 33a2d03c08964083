"""Links between pages that know of each other: of a run, its evaluation, a comparison."""

from __future__ import annotations

import html
import logging
import os
import pathlib
import re
import urllib.parse
from collections.abc import Mapping

from keras_dml._files.atomic import replacing

__all__ = ["Links", "add_link", "links_html"]

Links = Mapping[pathlib.Path, str]
"""Paths of other pages -> what they are, plain text."""

_LOGGER = logging.getLogger("experiments")
_OPEN, _CLOSE = '<nav class="soft">', "</nav>"
_BLOCK = re.compile(f"{re.escape(_OPEN)}(.*?){_CLOSE}", re.DOTALL)
_LINK = re.compile(r'<a href="([^"]*)">([^<]*)</a>')


def links_html(page: pathlib.Path, links: Links) -> str:
    """The links of a page, by relative addresses, those that its file has already among them.

    Args:
        page: where they stand; it may not be there yet.
        links: to other pages. One that is not there is left out.
    """
    try:
        there = _BLOCK.search(page.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        there = None
    known = {
        urllib.parse.unquote(html.unescape(address)): html.unescape(text)
        for address, text in _LINK.findall(there[1] if there else "")
    }
    # By what leads from one to the other: the same however the paths were given.
    known |= {
        pathlib.PurePath(os.path.relpath(other, page.parent)).as_posix(): text
        for other, text in links.items()
    }
    shown = [
        f'<a href="{html.escape(urllib.parse.quote(address))}">{html.escape(text)}</a>'
        for address, text in known.items()
        if (page.parent / address).is_file()
    ]
    return f"{_OPEN}{' · '.join(shown)}{_CLOSE}"


def add_link(page: pathlib.Path, other: pathlib.Path, text: str) -> None:
    """Let a page that is there lead to another one.

    A page of an earlier version has no place for links and does not change. A page that must not be
    written does not change either, and a note says so.

    Args:
        page: the one; nothing happens where it is not there.
        other: where the link leads.
        text: what that is.
    """
    try:
        written = page.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    links = links_html(page, {other: text})
    anew = _BLOCK.sub(lambda _: links, written, count=1)
    if anew == written:
        return
    try:
        with replacing(page) as unfinished:
            unfinished.write_text(anew, encoding="utf-8", newline="\n")
    except PermissionError as error:  # the page of another user's run
        _LOGGER.warning("%s cannot be changed to link to %s: %s", page, other, error.strerror)
