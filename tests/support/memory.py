"""What a process holds for itself, and whether that grows."""

import ctypes
import gc

import numpy as np
import scipy.stats


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

    Of the least that was held in each tenth of the second half, by when caches are full, the median
    of the slopes between any two (Theil and Sen).
    """
    tenths = np.array_split(np.asarray(measured, "float64")[len(measured) // 2 :], 10)
    slope, *_ = scipy.stats.theilslopes([tenth.min() for tenth in tenths])
    return slope * 10 / (len(measured) / 2)
