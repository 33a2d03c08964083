"""What the datasets that are read from files share: checking the folder and logging."""

import logging
import os

LOGGER = logging.getLogger("pipelines")


def checked_data_dir(data_dir, expected: str) -> str:
    """Returns `data_dir` as a string, with `~` expanded.

    Raises ValueError unless it is a folder with something in it. `expected` is the end of the
    message: which layout is expected and, for a published dataset, where to get it.
    """
    if data_dir is None or not os.fspath(data_dir):
        raise ValueError(f"data_dir must be given. {expected} Received: data_dir={data_dir!r}")
    folder = os.path.expanduser(os.fspath(data_dir))
    try:
        entries = os.listdir(folder)
    except OSError as error:
        raise ValueError(
            f"data_dir cannot be read as a folder ({error.strerror}). {expected} "
            f"Received: data_dir={folder}"
        ) from error
    if not entries:
        raise ValueError(f"data_dir is an empty folder. {expected} Received: data_dir={folder}")
    return folder
