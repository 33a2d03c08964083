"""`python -m keras_dml.losses`: print the table of the losses, or write it to a page.

`python -m keras_dml.losses docs/pages/guides/losses.md` replaces the text between the two comments
in the page.
"""

import inspect
import pathlib
import re
import sys

from keras_dml._common.errors import ArgumentError
from keras_dml.losses import LOSSES

BEGIN = "<!-- losses: python -m keras_dml.losses docs/pages/guides/losses.md -->\n"
END = "<!-- end of losses -->"
_OF_EVERY_LOSS = ("reduction", "name", "dtype")


def table() -> str:
    """Return a Markdown table of all losses: description, `--loss`, and class with arguments."""
    rows = ["| loss | `--loss` | class in `keras_dml.losses` |", "| --- | --- | --- |"]
    for name, loss in LOSSES.items():
        arguments = ", ".join(
            str(parameter.replace(annotation=parameter.empty))
            for parameter in inspect.signature(loss).parameters.values()
            if parameter.name not in _OF_EVERY_LOSS
            # Many losses have these. A row shows only the specific arguments.
            and (parameter.name not in ("mining", "relation") or parameter.default is not None)
        )
        first, *_ = (inspect.getdoc(loss) or "").splitlines()
        description = first.rstrip(".").replace("|", "\\|")
        rows.append(f"| {description} | `{name}` | `{loss.__name__}({arguments})` |")
    return "\n".join(rows) + "\n"


def with_table(text: str) -> str:
    """Return a Markdown text with the current table between its two comments.

    Raises:
        ValueError: The text does not contain each of the comments once.
    """
    between = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)
    replaced, count = between.subn(lambda _: table(), text)
    if count != 1:
        raise ArgumentError(f"text must contain {BEGIN.strip()} and then {END}, each once.")
    return replaced


if __name__ == "__main__":
    if len(sys.argv) > 1:
        path = pathlib.Path(sys.argv[1])
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table(), end="")
