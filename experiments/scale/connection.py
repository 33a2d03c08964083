"""The connection to Ray: a cluster, or processes on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.options.child_process import child_environment
from experiments.options.errors import UsageError, one_line
from keras_dml._common.extras import needing

with needing("ray", "--engine=ray"):
    import ray

_SECONDS_TO_ANSWER = 10.0


@contextlib.contextmanager
def connected(environment: Mapping[str, str], **arguments: Any) -> Iterator[None]:
    """Connect to the cluster of `RAY_ADDRESS`, or start Ray on this machine for this command.

    Args:
        environment: variables for the workers.
        **arguments: more arguments for `ray.init`.

    Raises:
        UsageError: if the cluster cannot be used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray warns about a future default otherwise.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    _check_answer(address)
    variables = {**environment}
    if address is None:
        variables["PYTHONPATH"] = child_environment().get("PYTHONPATH", "")
        arguments |= {"include_dashboard": False}
    runtime = {"env_vars": variables}
    try:
        ray.init(address=address, logging_level="ERROR", runtime_env=runtime, **arguments)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where, hint = "Ray on this machine", ""
        if address:
            where = f"the cluster of RAY_ADDRESS={address}"
            # Ray's own error does not mention the token.
            hint = ". A cluster with a token needs RAY_AUTH_MODE=token and the token here"
        raise UsageError(f"{where} cannot be used: {one_line(error)[:300]}{hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


def where_logs_are() -> str:
    """Return a sentence that names the folder in which Ray keeps what its processes logged."""
    root = os.environ.get("RAY_TMPDIR", "/tmp")
    where = "on the head of the cluster" if os.environ.get("RAY_ADDRESS") else "on this machine"
    return f"Ray's logs: {root}/ray/session_latest/logs {where}."


def _check_answer(address: str | None) -> None:
    """Raise `UsageError` if nothing answers. Ray itself would try for five minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit()):
        return  # "auto", or an address that Ray refuses at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"nothing answers at RAY_ADDRESS={address} ({one_line(error)}). Name the head of a "
            "cluster as HOST:PORT, or unset RAY_ADDRESS to use this machine only."
        ) from error
