"""Links between pages, such as a run's report, its evaluation, and a comparison."""

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
"""Paths of other pages -> their names, plain text."""

_LOGGER = logging.getLogger("experiments")
_OPEN, _CLOSE = '<nav class="soft">', "</nav>"
_BLOCK = re.compile(f"{re.escape(_OPEN)}(.*?){_CLOSE}", re.DOTALL)
_LINK = re.compile(r'<a href="([^"]*)">([^<]*)</a>')


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
        address = pathlib.PurePath(os.path.relpath(other, page.parent)).as_posix()
        known[html.escape(urllib.parse.quote(address))] = html.escape(text)
    shown = [
        f'<a href="{address}">{text}</a>'
        for address, text in known.items()
        if (page.parent / urllib.parse.unquote(html.unescape(address))).is_file()
    ]
    return f"{_OPEN}{' · '.join(shown)}{_CLOSE}"


def _read(page: pathlib.Path) -> str:
    """Return the text of a page; empty if it is missing or not a page of ours."""
    try:
        return page.read_text(encoding="utf-8")
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
