"""Progress bars that count images."""

import sys

from pipelines.bars import Bar


def progress_bar(description: str, total: int, initial: int = 0, leave: bool = False) -> Bar:
    """Create a progress bar in images. In a log file it prints a line from time to time."""
    redraws = sys.stderr.isatty()
    return Bar(
        desc=description,
        total=total,
        initial=initial,
        unit="image",
        leave=leave,
        dynamic_ncols=redraws,
        **({"mininterval": 0.2} if redraws else {}),
    )
