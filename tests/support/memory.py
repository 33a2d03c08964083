"""What a process holds for itself, and whether that grows."""

import ctypes
import gc

import numpy as np


def private_kilobytes(process="self"):
    """Memory that no other process shares: of this one, or of the one with a number."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        lines = [line.split() for line in file if line.startswith(("Private_Clean", "Private_Di"))]
    return sum(int(kilobytes) for _, kilobytes, _ in lines)


def kept_kilobytes():
    """Private memory of this process, without what nobody holds any more.

    Python's cycles and the free pieces of C's heap come and go by megabytes, and hide what stays.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return private_kilobytes()


def growth(measured):
    """Slope of the second half by least squares: how much more with each measurement."""
    half = np.asarray(measured, "float64")[len(measured) // 2 :]
    return np.polyfit(np.arange(len(half)), half, 1)[0]


def lasting_growth(measured):
    """How much more with each measurement: what stays, not what comes and goes.

    The slope by least squares of the least that was held in each fifth but the first.
    """
    fifths = np.array_split(np.asarray(measured, "float64"), 5)[1:]
    middles = np.arange(len(fifths)) * len(measured) / 5
    return np.polyfit(middles, [part.min() for part in fifths], 1)[0]
