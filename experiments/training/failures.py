"""Errors during a run, explained to its user."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from experiments.options.command_line import LOST_WORKER, NO_SPACE
from experiments.options.data import all_tables, check_still_there, not_an_image
from experiments.options.errors import RunError, UsageError
from experiments.training.run_files import CHECKPOINT, DIVERGED, has_checkpoint
from experiments.training.run_folder import RunFolder
from pipelines import Split, find_bad_images
from pipelines.images.limits import MOST_PIXELS


@contextlib.contextmanager
def explained(folder: RunFolder, data: Split, max_pixels: int = MOST_PIXELS) -> Iterator[None]:
    """Convert errors of the training, the files, and the memory into errors with advice.

    Args:
        folder: Folder of the run.
        data: Images of the run.
        max_pixels: Largest number of pixels of an image.
    """
    try:
        yield
    except FloatingPointError as error:
        checkpoint = folder.file(CHECKPOINT)
        kept = (
            f"the last good checkpoint is kept in {checkpoint}"
            if checkpoint.is_file()
            else "the run has no checkpoint"
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
    # UnicodeDecodeError: TensorFlow's message contains bytes of a damaged file.
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        if type(error).__name__ in LOST_WORKER:
            raise
        for side, table in all_tables(data).items():
            bad = find_bad_images(table, max_pixels=max_pixels)
            check_still_there(bad, _what_next(folder))
            if bad:
                where = " in a new --output_dir" if has_checkpoint(folder.path) else ""
                raise UsageError(f"{not_an_image(side, table, bad)}{where}") from error
        raise
    except OSError as error:
        raise RunError(f"{error}; {_what_next(folder)}") from error


def _what_next(folder: RunFolder) -> str:
    """Return what the same command will do."""
    if has_checkpoint(folder.path):
        return "the same command resumes from the last checkpoint"
    return "the same command begins again, because the run has no checkpoint"
