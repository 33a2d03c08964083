"""What a failure in the middle of a run means to its user."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from experiments.options.command_line import LOST_WORKER, NO_SPACE
from experiments.options.data import check_still_there, not_an_image
from experiments.options.errors import RunError, UsageError
from experiments.training.run_files import CHECKPOINT, DIVERGED, has_checkpoint
from experiments.training.run_folder import RunFolder
from pipelines import Split, find_bad_images
from pipelines.images.limits import MOST_PIXELS


@contextlib.contextmanager
def explained(folder: RunFolder, data: Split, max_pixels: int = MOST_PIXELS) -> Iterator[None]:
    """Turns numbers that broke and files that are no images into errors that say what to do.

    Args:
        folder: the run's.
        data: its images.
        max_pixels: how many pixels one may have.
    """
    try:
        yield
    except FloatingPointError as error:
        checkpoint = folder.file(CHECKPOINT)
        kept = (
            f"the last good checkpoint is kept in {checkpoint}"
            if checkpoint.is_file()
            else "there is no checkpoint yet"
        )
        folder.write_text(DIVERGED, f"{error}\n")
        raise RunError(
            f"{error}; {kept}. Try a lower --learning_rate in a new --output_dir"
        ) from error
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_what_next(folder)) from error
    except tf.errors.ResourceExhaustedError as error:
        if NO_SPACE in str(error):
            raise RunError(f"{error.message}; {_what_next(folder)}") from error
        raise RunError(
            "out of memory; the same command with a smaller --batch_size (or --eval_batch_size, or "
            "with --mixed_precision) in a new --output_dir needs less"
        ) from error
    # UnicodeDecodeError: a message of TensorFlow's with bytes of a damaged file in it.
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        if type(error).__name__ in LOST_WORKER:
            raise
        for side, table in data.tables.items():
            bad = find_bad_images(table, max_pixels=max_pixels)
            check_still_there(bad, _what_next(folder))
            if bad:
                where = " in a new --output_dir" if has_checkpoint(folder.path) else ""
                raise UsageError(f"{not_an_image(side, table, bad)}{where}") from error
        raise
    except OSError as error:
        raise RunError(f"{error}; {_what_next(folder)}") from error


def _what_next(folder: RunFolder) -> str:
    """What the same command will do."""
    if has_checkpoint(folder.path):
        return "the same command goes on from the last checkpoint"
    return "the same command begins anew, since there is no checkpoint yet"
