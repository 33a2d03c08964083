"""Progress bars: on a terminal one line that redraws itself, in a log file a line now and then."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["Bar"]

_SECONDS_OF_A_LOG = 15.0
# Back to the line's beginning; a line up, of a bar within another.
_CONTROL = re.compile(r"\x1b\[\w+|[\r\n]")


class Bar(tqdm):
    """A tqdm bar on standard error that leaves no control character in a log file.

    Args:
        *args, **kwargs: tqdm's, but for `file`.

    Examples:

        with Bar(total=100, desc="reading", unit="image") as bar:
            bar.update(10)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not sys.stderr.isatty():
            kwargs.setdefault("mininterval", _SECONDS_OF_A_LOG)
            kwargs["file"] = _Lines(sys.stderr)
        super().__init__(*args, **kwargs)

    def begin_counting(self, done: int) -> None:
        """So many are done, at a rate that is not that of the others, and is not reckoned with."""
        self.n += done
        if self.disable:  # it has no clock
            return
        self.initial = self.n
        self.start_t = self.last_print_t = self._time()
        self.last_print_n = self.n
        self.refresh()


class _Lines:
    """What a bar draws over itself, as lines below each other."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """A line of what can be seen."""
        line = _CONTROL.sub("", text).rstrip()
        if line:
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        """Pass it on."""
        self._stream.flush()
