"""Ctrl-C: the first interrupts the command, the second ends the process at once."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130  # the exit code


class Interrupts:
    """The SIGINT handler of a process that runs one command.

    The first signal raises `KeyboardInterrupt`. A second one, or one after the command, would raise
    it in cleanup code or in the interpreter's shutdown, which prints a traceback. It ends the
    process instead.

    Args:
        line: what the process prints if it ends before the command's own last line.

    Attributes:
        received: whether the signal has come.
        ignored: whether it is ignored, while the process prints the command's last line.
    """

    def __init__(self, line: str) -> None:
        self.received, self.ignored = False, False
        self._line: str | None = line
        self._code = INTERRUPTED
        self._raises = True

    def install(self) -> None:
        """Handle the signal, unless the process ignores it or handles it already."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        signal.signal(signal.SIGINT, self._handle)
        self._report = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        # The last of all exit handlers, since it is registered first.
        atexit.register(self._exit_if_received)

    def command_ended(self, code: int) -> None:
        """From now on the process prints no more lines, and its exit code is this one."""
        self._code, self._line, self._raises = code, None, False
        self.ignored = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.ignored:
            return
        self.received = True
        if self._raises:
            self._raises = False
            raise KeyboardInterrupt
        if self._line is not None:
            os.write(2, f"{self._line}\n".encode())
        os._exit(self._code)

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Repeat an interrupt that came in a callback, where Python drops exceptions."""
        if self._line is None or not issubclass(lost.exc_type, KeyboardInterrupt):
            self._report(lost)
            return
        self._raises = True
        again = threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGINT])
        again.daemon = True
        again.start()

    def _exit_if_received(self) -> None:
        """Skip the interpreter's last steps, in which another signal would end it differently."""
        if self.received:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
                    stream.flush()
            os._exit(self._code)
