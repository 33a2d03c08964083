"""What a process holds for itself, and whether that grows."""

import numpy as np


def private_kilobytes(process="self"):
    """Memory that no other process shares: of this one, or of the one with a number."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        lines = [line.split() for line in file if line.startswith(("Private_Clean", "Private_Di"))]
    return sum(int(kilobytes) for _, kilobytes, _ in lines)


def growth(measured):
    """Slope of the second half by least squares: how much more with each measurement."""
    half = np.asarray(measured, "float64")[len(measured) // 2 :]
    return np.polyfit(np.arange(len(half)), half, 1)[0]
