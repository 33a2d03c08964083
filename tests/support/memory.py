"""The memory of a process, and whether it grows."""

import collections
import ctypes
import gc
import os
import tempfile
from xml.etree import ElementTree

import numpy as np


def private_kilobytes(process="self"):
    """Return the memory that only this process, or the one with this number, uses."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        lines = [line.split() for line in file if line.startswith(("Private_Clean", "Private_Di"))]
    return sum(int(kilobytes) for _, kilobytes, _ in lines)


def allocated_kilobytes():
    """Return the memory that malloc has given out, in a process with `PYTHONMALLOC=malloc`.

    Private memory varies by megabytes. This value excludes free pieces of the heap.
    """
    gc.collect()
    libc = ctypes.CDLL("libc.so.6")
    libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p] * 2
    libc.malloc_info.argtypes, libc.fclose.argtypes = (
        [ctypes.c_int, ctypes.c_void_p],
        [ctypes.c_void_p],
    )
    with tempfile.NamedTemporaryFile() as written:
        file = libc.fopen(os.fsencode(written.name), b"w")
        libc.malloc_info(0, file)
        libc.fclose(file)
        heaps = ElementTree.parse(written.name).getroot()
    sizes = collections.Counter()
    for entry in (*heaps.findall("total"), *heaps.findall("system")):
        sizes[entry.get("type")] += int(entry.get("size"))
    return (sizes["current"] + sizes["mmap"] - sizes["fast"] - sizes["rest"]) // 1024


def growth(measured):
    """Return the growth per measurement: the least-squares slope of the second half."""
    half = np.asarray(measured, "float64")[len(measured) // 2 :]
    return np.polyfit(np.arange(len(half)), half, 1)[0]
