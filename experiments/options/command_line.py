"""The end of a command: one line and an exit code.

0: done, or help. 1: the run has to stop (`stopped: …`), or a bug (`internal error: …`, with the
traceback in a file). 2: a user's mistake (`error: …`). 3: a check found more than the user allows
(`found: …`). 130: interrupted.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

from experiments import typed
from experiments.options.child_process import end_with_parent
from experiments.options.command_words import wants_debug
from experiments.options.errors import (
    MISTAKE,
    FindingsError,
    HelpRequested,
    RunError,
    UsageError,
    one_line,
)
from experiments.options.interrupts import INTERRUPTED, Interrupts
from experiments.options.keras_settings import check_keras_settings
from experiments.options.visible import visible_text
from experiments.recipes import RecipeError
from keras_dml._common.errors import ArgumentError, without_passwords
from keras_dml._common.extras import MissingExtraError

# Names of TensorFlow's errors when another worker does not answer.
LOST_WORKER = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
# The exceptions that are only raised for a user's mistake.
REFUSALS = (UsageError, RecipeError, ArgumentError, MissingExtraError)
FINDINGS = 3  # exit code of a check that found more than the user allows
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Part of TensorFlow's message for a full disk, which has the error class of full memory.
NO_SPACE = os.strerror(errno.ENOSPC)
# Python's messages for a path with a NUL, which a table or a file can have.
_NUL = ("embedded null byte", "embedded null character in path", "embedded null character")
_LONGEST = 1000  # characters of a line of an error or a note


class _Notes(logging.Formatter):
    """A formatter that hides passwords, and escapes control characters in file names."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, or more with a traceback."""
        return _printable(super().format(record))


def mute() -> None:
    """Discard the output and the progress bars of this process, but not its errors."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    os.environ["TQDM_DISABLE"] = "1"


def run_command(
    main: Callable[[list[str]], object], argv: Sequence[str] | None = None, goes_on: str = ""
) -> int:
    """Call `main(argv)` and return the exit code.

    Args:
        main: The command.
        argv: The command line, beginning with the command's name. Default: of this process.
        goes_on: What the same command does after an interruption, in words.
    """
    if sys.flags.optimize > 1:
        print(
            "error: Python must keep docstrings, which the flags are read from, but got -OO or "
            "PYTHONOPTIMIZE=2. Run it without.",
            file=sys.stderr,
        )
        return 2
    # Hide TensorFlow's messages at import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _open_streams()
    notes = logging.StreamHandler()
    notes.setFormatter(_Notes("note: %(message)s"))
    logging.basicConfig(handlers=[notes])
    end_with_parent()
    words = list(sys.argv if argv is None else argv)
    interrupts = Interrupts(_interrupted(goes_on))
    if argv is None:  # the process runs only this command
        interrupts.install()
    code = _exit_code(main, words, goes_on, interrupts)
    interrupts.command_ended(code)
    if argv is None:
        # Python's last collection visits all objects of TensorFlow and Keras, which takes a second.
        gc.freeze()
    return code


def _open_streams() -> None:
    """Open closed streams, and escape characters that the terminal cannot show."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # Otherwise the next file that is opened gets this number, and the output.
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w")  # noqa: SIM115 until the process ends
            setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _exit_code(
    main: Callable[[list[str]], object], words: list[str], goes_on: str, interrupts: Interrupts
) -> int:
    """Call the command, and print its last line if it fails."""
    try:
        try:
            check_keras_settings()
            main(words)
        except HelpRequested as request:
            print(typed(str(request)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as error:
        interrupts.ignored = True
        return _end(_interrupted(str(error) or goes_on), INTERRUPTED)
    except Exception as error:
        interrupts.ignored = True
        # TensorFlow's C++ code replaces a KeyboardInterrupt by other errors.
        if interrupts.received:
            return _end(_interrupted(goes_on), INTERRUPTED)
        return _failed(error, wants_debug(words))
    return 0


def _interrupted(what_next: str) -> str:
    return f"interrupted: {what_next}" if what_next else "interrupted"


def _failed(error: Exception, debug: bool) -> int:
    """Print the last line of a failed command, and return its exit code."""
    text, kind = one_line(error), type(error).__name__
    if isinstance(error, ValueError) and text in _NUL:
        return _end("error: the path of a file must have no NUL character", MISTAKE)
    # By name, because TensorFlow is perhaps not imported.
    exhausted = kind == "ResourceExhaustedError"
    if isinstance(error, FindingsError):
        return _end(f"found: {text}", FINDINGS)
    if (
        isinstance(error, RunError)
        or (isinstance(error, OSError) and error.errno in _NO_SPACE)
        or (exhausted and NO_SPACE in text)
    ):
        return _end(f"stopped: {text}", 1)
    if isinstance(error, REFUSALS) or (isinstance(error, OSError) and error.filename is not None):
        return _end(f"error: {text}", MISTAKE)
    if exhausted:
        return _end(
            "error: out of memory: the model that the flags ask for is too large (filters, "
            "embedding_size, image_size, batch_size)",
            MISTAKE,
        )
    if kind in LOST_WORKER and os.environ.get("TF_CONFIG"):
        return _end(
            "stopped: another worker is gone; the same command on all workers resumes from the "
            "last checkpoint",
            1,
        )
    return _bug(error, debug)


def _bug(error: Exception, debug: bool) -> int:
    what = f"internal error: {' '.join([f'{type(error).__name__}:', one_line(error)]).strip(': ')}"
    lines = "".join(map(without_passwords, traceback.format_exception(error)))
    if debug:
        return _end(f"{lines}{what}", 1)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="keras_dml-", suffix=".traceback", delete=False,
            encoding="utf-8", errors="backslashreplace",
        ) as file:  # fmt: skip
            file.write(lines)
    except OSError:  # no folder for temporary files
        return _end(f"{lines}{what}", 1)
    return _end(f"{what}; the traceback is in {file.name} (--debug prints it)", 1)


def _end(text: str, code: int) -> int:
    """Print to stderr. Return the code."""
    print(_printable(text), file=sys.stderr)
    return code


def _printable(text: str) -> str:
    """Return an error or a note for the terminal, without passwords.

    Characters that the terminal cannot show are escaped: a file name can have control characters.
    The middle of a long line is left out.
    """
    encoding = sys.stderr.encoding or "utf-8"
    text = "\n".join(map(without_passwords, typed(text).split("\n")))
    shown = visible_text(text).encode(encoding, "backslashreplace")
    lines = shown.decode(encoding).split("\n")
    half = _LONGEST // 2 - 3
    return "\n".join(
        line if len(line) <= _LONGEST else f"{line[:half]} ... {line[-half:]}" for line in lines
    )
