"""What converters say of themselves stays off the terminal."""

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
    """Within it nothing reaches the terminal: not by Python, not by libraries in other languages.

    What a block raises leaves it as ever.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    level = logging.root.manager.disable
    with contextlib.ExitStack() as undone, tempfile.TemporaryFile() as nowhere:
        for number in (1, 2):
            kept = os.dup(number)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, number)
            os.dup2(nowhere.fileno(), number)
        # Else what is still in the buffers would come after the block.
        undone.callback(sys.stderr.flush)
        undone.callback(sys.stdout.flush)
        undone.callback(logging.disable, level)
        logging.disable(logging.CRITICAL)
        # Python's streams may write past the two numbers, as in a notebook.
        silent = io.StringIO()  # not closed: a logger may have been made that keeps it
        undone.enter_context(contextlib.redirect_stdout(silent))
        undone.enter_context(contextlib.redirect_stderr(silent))
        undone.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
