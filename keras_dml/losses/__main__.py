"""`python -m keras_dml.losses`: print the table of the losses, or write it into a file.

`python -m keras_dml.losses docs/pages/guides/losses.md` replaces the text between the file's two
comments.
"""

import pathlib
import re
import sys

from keras_dml._common.errors import ArgumentError
from keras_dml.losses import catalog

BEGIN = "<!-- losses: python -m keras_dml.losses docs/pages/guides/losses.md -->\n"
END = "<!-- end of losses -->"


def with_table(text: str) -> str:
    """Return a Markdown text with the current table between its two comments.

    Raises:
        ValueError: The text does not contain each of the comments once.
    """
    between = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    replaced, count = between.subn(lambda _: catalog.table(), text)
    if count != 1:
        raise ArgumentError(f"The text must hold once {BEGIN.strip()} and, after it, {END}")
    return replaced


if __name__ == "__main__":
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(catalog.table(), end="")
