"""The memory of a process, and whether it grows."""

import numpy as np


def private_kilobytes(process):
    """Return the memory that only the process with this number uses."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        lines = [line.split() for line in file if line.startswith(("Private_Clean", "Private_Di"))]
    return sum(int(kilobytes) for _, kilobytes, _ in lines)


def growth(measured):
    """Return the growth per measurement: the least-squares slope of the second half."""
    half = np.asarray(measured, "float64")[len(measured) // 2 :]
    return np.polyfit(np.arange(len(half)), half, 1)[0]
