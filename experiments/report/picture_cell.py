"""A picture with what is said of it, the same cell on every page; it holds its own bytes."""

import base64
import html
import io
import re

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipelines.visible import visible


def picture_cell(kind: str, picture: str, name: str, note: str, mark: str = "") -> str:
    """A framed picture with its name and a note under it, as HTML.

    Args:
        kind: the frame's class in the page's style: "query", "match", "other" or another.
        picture: HTML, such as of `embedded_picture`.
        name: plain text, made `visible`; may break into lines where the names of folders do.
        note: HTML behind the name.
        mark: HTML in the frame's corner.
    """
    title = html.escape(visible(name))
    return (
        f'<figure class="{kind}"><span class="frame">{picture}{mark}</span><figcaption>'
        f'<span class="name" title="{title}">{breaking(name)}</span>{note}'
        "</figcaption></figure>"
    )


def embedded_picture(encoded: bytes, kind: str, alt: str, attributes: str = "") -> str:
    """An `<img>` that holds its own bytes.

    Args:
        encoded: the contents of an image file.
        kind: "png" or "jpeg".
        alt: plain text, made `visible`.
        attributes: HTML before `alt`, without a space on either side.
    """
    shown = f"{attributes} " if attributes else ""
    return f'<img src="{picture_address(encoded, kind)}" {shown}alt="{html.escape(visible(alt))}">'


def encoded_picture(
    image: npt.NDArray[np.uint8], side: int, whole_up_to: int | None = None
) -> tuple[bytes, str]:
    """A picture, uint8 `[h, w, 3]`, as the contents of an image file, and its kind.

    Args:
        image: the pixels.
        side: a JPEG has at most so many of them each way.
        whole_up_to: up to this size it is a PNG of all pixels instead. None: up to `side`.
    """
    picture = Image.fromarray(image)
    file = io.BytesIO()
    if max(picture.size) <= (side if whole_up_to is None else whole_up_to):
        picture.save(file, "PNG", optimize=True)
        return file.getvalue(), "png"
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    picture.save(file, "JPEG", quality=85, optimize=True)
    return file.getvalue(), "jpeg"


def picture_address(encoded: bytes, kind: str) -> str:
    """The `data:` address of an image file's contents."""
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def breaking(name: str) -> str:
    """HTML of a name, made `visible`, that may break into lines behind each _ and /."""
    return re.sub("([_/])", r"\1<wbr>", html.escape(visible(name)))
