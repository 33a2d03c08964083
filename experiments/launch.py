"""`python -m experiments.launch --hosts=A,B`: a run on several machines, whose dead come back."""

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence

from experiments.options import (
    RunError,
    RunOptions,
    UsageError,
    declarations,
    option,
    parse,
    run_command,
    words_of,
)
from experiments.options.child import child_command, child_environment
from experiments.options.command_line import MISTAKE
from experiments.training.cluster import is_address

_MACHINES = "Machines"
SLURM = "slurm"
DEFAULT_PORT = 2222
# Which of the hosts a process is, as the engines that start one on each machine say it.
INDEX_VARIABLES = ("SLURM_PROCID", "JOB_COMPLETION_INDEX")
_INTERRUPTED = 130
_LONGEST_WAIT = 30.0
_POLL = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions(RunOptions):
    """Which machines, and what the run is given besides."""

    command = "experiments.launch"
    intro = """Train on several machines, as one run; a worker that dies is started again.

  python -m experiments.launch --hosts=host0,host1 --flagfile=sop.flags [--flag=value ...]

Give the same command on every machine: each starts the worker that it is in the list (with
--hosts=localhost:2222,localhost:2223 one machine starts both, to try it). When one worker dies the
others stop within seconds, each machine starts its own again, and the run goes on from its last
checkpoint. Every other flag goes to experiments.run, with --strategy=multi_worker.

Under Slurm: srun python -m experiments.launch --hosts=slurm --flagfile=sop.flags ...
"""

    hosts: tuple[str, ...] = option(
        (),
        _MACHINES,
        "The machines, host or host:port, the first of which writes the run's folder; slurm = "
        f"those of the Slurm job. Without a port {DEFAULT_PORT}.",
    )
    index: int | None = option(
        None,
        _MACHINES,
        "Which of the hosts this machine is, from 0. Default: what Slurm or an indexed job of "
        "Kubernetes says, else the hosts by whose name it goes.",
        lower_bound=0,
    )
    restarts: int = option(
        20, _MACHINES, "How often a worker is started again before it is given up.", lower_bound=0
    )


_NOT_FORWARDED = ("hosts", "index", "restarts", "flagfile", "debug", "help", "strategy")


def main(argv: list[str]) -> None:
    """Start this machine's workers, and start again what dies of them."""
    options = parse(LaunchOptions, argv)
    if "strategy" in options.on_command_line and options.strategy != "multi_worker":
        raise UsageError(
            "strategy of several machines is multi_worker, and need not be said. "
            f"Received: strategy={options.strategy}"
        )
    addresses = worker_addresses(options.hosts)
    indices = own_indices(addresses, options.index)
    names = [name for name in declarations(LaunchOptions) if name not in _NOT_FORWARDED]
    words = [f"--flagfile={name}" for name in options.flagfile]
    words += words_of(options, [name for name in names if name in options.on_command_line])
    workers = [
        _Worker(index, addresses, [*words, "--strategy=multi_worker"], options.restarts)
        for index in indices
    ]
    try:
        running = workers
        while running := [worker for worker in running if not worker.finished()]:
            time.sleep(_POLL)
    finally:
        for worker in workers:
            worker.end()


def worker_addresses(hosts: Sequence[str]) -> list[str]:
    """host:port of every worker.

    Raises:
        UsageError: none, one twice, no host:port; outside of a Slurm job "slurm".
    """
    if list(hosts) == [SLURM]:
        hosts = _slurm_hosts()
    if not hosts:
        raise UsageError("hosts must name the machines, such as host0,host1. Received: no hosts")
    found = []
    for host in hosts:
        address = host if ":" in host else f"{host}:{DEFAULT_PORT}"
        if not is_address(address):
            raise UsageError(f"hosts must be host or host:port, each. Received: {host}")
        found.append(address)
    if len(set(found)) < len(found):
        raise UsageError(
            "hosts must differ, by their ports where one machine has several workers. "
            f"Received: hosts={','.join(hosts)}"
        )
    return found


def _slurm_hosts() -> list[str]:
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    program = shutil.which("scontrol")
    if not nodes or program is None:
        raise UsageError(
            "hosts=slurm is for a Slurm job, with SLURM_JOB_NODELIST and scontrol. "
            f"Received: SLURM_JOB_NODELIST={nodes or 'nothing'}"
        )
    listed = subprocess.run(
        [program, "show", "hostnames", nodes], check=True, capture_output=True, text=True
    )
    return listed.stdout.split()


def own_indices(addresses: Sequence[str], index: int | None) -> list[int]:
    """Which workers are this machine's.

    Raises:
        UsageError: an index beyond the hosts, or no host that goes by this machine's name.
    """
    said = "index"
    if index is None:
        for said in INDEX_VARIABLES:
            if os.environ.get(said, "").isdecimal():
                index = int(os.environ[said])
                break
    if index is not None:
        if index >= len(addresses):
            raise UsageError(
                f"{said} must be below the number of hosts, {len(addresses)}. "
                f"Received: {said}={index}"
            )
        return [index]
    names = {"localhost", "127.0.0.1", "[::1]", socket.gethostname(), socket.getfqdn()}
    names |= {name.partition(".")[0] for name in names if not name[0].isdigit()}
    found = [
        place for place, address in enumerate(addresses) if address.rpartition(":")[0] in names
    ]
    if not found:
        raise UsageError(
            "index must say which of the hosts this machine is: none goes by its name, "
            f"{socket.gethostname()}. Received: hosts={','.join(addresses)}"
        )
    return found


class _Worker:
    """One process of the run, and those that follow it.

    Args:
        index: its place.
        addresses: of all workers.
        words: flags of `experiments.run`.
        restarts: how many may follow.
    """

    def __init__(
        self, index: int, addresses: Sequence[str], words: Sequence[str], restarts: int
    ) -> None:
        self.index, self.words, self.restarts = index, words, restarts
        task = {"type": "worker", "index": index}
        self._config = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
        self._restarted = 0
        self._again_at = 0.0
        self._process: subprocess.Popen[bytes] | None = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            child_command("experiments.run", *self.words),
            env={**child_environment(), "TF_CONFIG": self._config},
        )

    def finished(self) -> bool:
        """Whether it has done its work; if it died, another takes its place after a while.

        Raises:
            UsageError: it was given something wrong.
            RunError: it has died too often.
            KeyboardInterrupt: it was interrupted.
        """
        if self._process is None:
            if time.monotonic() < self._again_at:
                return False
            self._process = self._started()
        code = self._process.poll()
        if code is None:
            return False
        if code == 0:
            return True
        what = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if code == MISTAKE:
            raise UsageError(f"worker {self.index} {what}; what it said is above")
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        if self._restarted >= self.restarts:
            raise RunError(
                f"worker {self.index} {what}, after {self._restarted} restarts (--restarts)"
            )
        wait = min(2.0**self._restarted, _LONGEST_WAIT)
        self._restarted += 1
        print(
            f"worker {self.index} {what}; started again in {wait:g} s, "
            f"{self._restarted} of {self.restarts}",
            flush=True,
        )
        self._process, self._again_at = None, time.monotonic() + wait
        return False

    def end(self) -> None:
        """Let nothing of it run on."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


if __name__ == "__main__":
    import sys

    sys.exit(run_command(main))
