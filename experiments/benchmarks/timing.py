"""How long a call takes."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Step: TypeAlias = Callable[[], Any]
SECONDS = 2.0


def milliseconds(step: Step) -> float:
    """The median time of a call, after two to warm up; of fewer than five where they are slow."""
    step(), step()
    times: list[float] = []
    began = time.perf_counter()
    while not times or time.perf_counter() - began < SECONDS * (1 if len(times) >= 5 else 4):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def milliseconds_in_turns(steps: Mapping[str, Step], seconds: float) -> dict[str, float]:
    """The median time of each step's call, after one to warm up.

    In turns, so that a machine that slows down slows all of them; at least five calls each.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    began = time.perf_counter()
    while min(map(len, times.values())) < 5 or time.perf_counter() - began < seconds:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(taken) for name, taken in times.items()}
