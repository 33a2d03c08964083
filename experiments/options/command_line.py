"""How a command ends: one clear line and exit code 2 for a user's mistake, no traceback."""

import contextlib
import logging
import os
import sys

from absl import flags

# TensorFlow's errors, by name, when a message from another worker does not come.
LOST_WORKER = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


class UsageError(Exception):
    """A mistake in what the user gave: the flags, the files, the folder."""


class RunError(Exception):
    """A run that had to stop for a reason that its user can act on."""


@contextlib.contextmanager
def usage_errors():
    """While what the user gave is being read, every complaint about a value is a usage error."""
    try:
        yield
    except (ValueError, TypeError, OSError, flags.Error) as error:
        raise UsageError(" ".join(str(error).split())) from error
    except Exception as error:
        # By name: TensorFlow may not even be imported yet.
        if type(error).__name__ != "ResourceExhaustedError":
            raise
        raise UsageError("out of memory: the model that the flags ask for is too large") from error


def quiet_tensorflow():
    """Keep TensorFlow's start-up notes off the terminal; must come before it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def mute():
    """Drop what this process prints, and its progress bars, from now on; its errors stay.

    Must come before tqdm is imported, which reads its switch then.
    """
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 until the process ends
    os.environ["TQDM_DISABLE"] = "1"


def run_command(main, argv=None):
    """Call `main(argv)` and return the exit code: 0, 1 (the run had to stop) or 2 (usage)."""
    logging.basicConfig(format="note: %(message)s")
    try:
        main(list(sys.argv if argv is None else argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        if not hasattr(error, "extra"):  # a MissingExtraError of keras_dml or pipelines
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if type(error).__name__ not in LOST_WORKER or not os.environ.get("TF_CONFIG"):
            raise
        print(
            "stopped: another worker is gone; the same command on all of them goes on from the "
            "last checkpoint",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0
