"""Silence for converters that print."""

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard everything that Python and native libraries print. Exceptions pass."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    level = logging.root.manager.disable
    with contextlib.ExitStack() as undone, tempfile.TemporaryFile() as nowhere:
        for number in (1, 2):
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            os.dup2(nowhere.fileno(), number)
        # Flush the buffers, so that their text does not appear after the block.
        undone.callback(sys.stderr.flush)
        undone.callback(sys.stdout.flush)
        undone.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        # In a notebook, Python's streams do not write to the two descriptors.
        silent = io.StringIO()  # stays open, because a new logger can keep it
        undone.enter_context(contextlib.redirect_stdout(silent))
        undone.enter_context(contextlib.redirect_stderr(silent))
        undone.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
