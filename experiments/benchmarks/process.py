"""What is measured in a process of its own: its memory, and the rows that it prints."""

import json
import resource
import subprocess
from collections.abc import Iterator
from typing import Any

from experiments.options.child import child_command, child_environment
from experiments.options.command_line import RunError


def resident_megabytes() -> float:
    """What the process holds now."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize() / 2**20


def peak_megabytes() -> float:
    """The most that the process has held since it began."""
    # Not getrusage's ru_maxrss: that counts the process that started this one, too.
    with open("/proc/self/status") as status:
        [peak] = [line for line in status if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1024


def json_rows(module: str, *arguments: str, **variables: str) -> Iterator[dict[str, Any]]:
    """Run a module in a process of its own, for its memory; yields the objects that it prints.

    Args:
        module, *arguments: what runs.
        **variables: of its environment.

    Raises:
        RunError: it failed; what it said stands on the terminal.
    """
    command, environment = child_command(module, *arguments), child_environment() | variables
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            yield json.loads(line)
    if process.returncode:
        what = " ".join([module, *arguments])
        raise RunError(f"{what} ended with code {process.returncode}; what it said is above")
