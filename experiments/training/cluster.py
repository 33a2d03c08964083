"""The processes that train together: `TF_CONFIG` or a Slurm job."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator

from experiments.options.errors import UsageError

_LOGGER = logging.getLogger("experiments")

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
_SLURM_PORT = 2222
_PATIENCE = 60.0  # seconds without contact until a line names the other workers


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The place of this process in a cluster of workers.

    Attributes:
        index: the number of this worker. Worker 0 prints and writes the run's folder.
        addresses: `host:port` of each worker. Empty if this process trains by itself.
    """

    index: int = 0
    addresses: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of workers."""
        return max(len(self.addresses), 1)

    @property
    def first(self) -> bool:
        """Whether this process prints and writes the run's folder."""
        return self.index == 0


def read_cluster(strategy: str) -> Cluster:
    """Read the cluster from `TF_CONFIG`, or in a Slurm job from Slurm's variables.

    Without `TF_CONFIG`, a Slurm job step of several tasks sets it.

    Args:
        strategy: only `multi_worker` has more than one process.

    Raises:
        UsageError: if `TF_CONFIG` is missing or invalid, or names a port of this machine that is
            in use.
    """
    if strategy != "multi_worker":
        return Cluster()
    if "TF_CONFIG" not in os.environ and "SLURM_STEP_NODELIST" in os.environ:
        os.environ["TF_CONFIG"] = _slurm_config()
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        own = cluster[task["type"]][task["index"]]
        addresses = [*cluster.get("chief", []), *cluster.get("worker", [])]
        index = addresses.index(own)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        addresses = []
    if not addresses or not all(map(_is_address, addresses)):
        raise UsageError(
            "TF_CONFIG must have the addresses of all workers as HOST:PORT, and the task of this "
            f"process, for --strategy=multi_worker, but got {text or 'nothing'}. Example, with a "
            f"different index on each worker: {_EXAMPLE}"
        )
    _check_free(own, text)
    _bypass_proxy(addresses)
    return Cluster(index, tuple(addresses))


def _bypass_proxy(addresses: list[str]) -> None:
    """Exclude the workers from a proxy, to which gRPC would send their connections."""
    hosts = dict.fromkeys(address.rpartition(":")[0].strip("[]") for address in addresses)
    for name in ("no_proxy", "no_grpc_proxy"):
        value = os.environ.get(name, "")
        if name == "no_proxy":
            value = value or os.environ.get("NO_PROXY", "")  # which programs then ignore
        known = [host for host in value.split(",") if host]
        # gRPC reads only the second variable if it is set.
        if known or name == "no_proxy":
            os.environ[name] = ",".join(dict.fromkeys([*known, *hosts]))


@contextlib.contextmanager
def naming_missing_workers(cluster: Cluster, patience: float = _PATIENCE) -> Iterator[None]:
    """Print which workers are waited for while a with statement takes long.

    Args:
        cluster: The cluster that this process joins within the with statement.
        patience: Seconds until the line is printed, and again after each further such time.
    """
    joined = threading.Event()

    def watch() -> None:
        others = [each for place, each in enumerate(cluster.addresses) if place != cluster.index]
        while not joined.wait(patience):
            missing = [address for address in others if not _answers(address)]
            if joined.is_set():
                return
            _LOGGER.warning(
                "waiting for %s%s",
                ", ".join(missing or others),
                "" if missing else ", which can be reached but have not joined",
            )

    if cluster.size > 1:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _slurm_config() -> str:
    """Return the `TF_CONFIG` of this task of a Slurm job step."""
    import tensorflow as tf  # takes seconds

    try:
        # Slurm assigns the GPUs. The resolver only has to list the tasks.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=_SLURM_PORT, gpus_per_node=1024, gpus_per_task=1, auto_set_gpu=False
        )
        workers = resolver.cluster_spec().as_dict()["worker"]
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"The variables of the Slurm job cannot be read: {error}") from error
    _, index = resolver.get_task_info()
    # The resolver sorts host10 before host2, and Slurm numbers its tasks in the order of the list.
    node, place = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_LOCALID", "0")
    own = f"{node}:{_SLURM_PORT + int(place)}"
    if own in workers:
        index = workers.index(own)
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})


def _is_address(address: object) -> bool:
    match = re.fullmatch(r"\S+:(\d+)", address) if isinstance(address, str) else None
    return match is not None and 0 < int(match[1]) < 2**16


def _check_free(address: str, text: str) -> None:
    # TensorFlow would share a port with another server that allows it, and then hang.
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError as error:
            raise UsageError(
                f"TF_CONFIG must name a free port of this machine, but got {port} "
                f"({error.strerror}) in TF_CONFIG={text}"
            ) from error
