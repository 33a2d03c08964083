"""Progress bars that count images."""

import sys

from tqdm import tqdm


def progress_bar(description: str, total: int, initial: int = 0, leave: bool = False) -> tqdm:
    """A tqdm bar in images; in a log file, where it cannot redraw itself, a line now and then."""
    redraws = sys.stderr.isatty()
    return tqdm(
        desc=description,
        total=total,
        initial=initial,
        unit="image",
        leave=leave,
        dynamic_ncols=redraws,
        mininterval=0.2 if redraws else 15.0,
    )
