"""`python -m experiments.benchmark BENCHMARK`: measure speed, memory, and scores."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from experiments.benchmarks import end_to_end, losses, relations, retrieval
from experiments.options import (
    HelpRequested,
    Options,
    UsageError,
    help_text,
    parse,
    run_command,
    wants_help,
)

BENCHMARKS: dict[str, tuple[type[Options], Callable[[Any], Iterator[str]]]] = {
    "losses": (losses.LossesOptions, losses.measure),
    "end_to_end": (end_to_end.EndToEndOptions, end_to_end.measure),
    "retrieval": (retrieval.RetrievalOptions, retrieval.measure),
    "relations": (relations.RelationsOptions, relations.measure),
}
"""The options of each benchmark, and the function that yields the lines of its table."""


def main(argv: list[str]) -> None:
    """Print the table of a benchmark, line by line."""
    if len(argv) > 1 and argv[1] in BENCHMARKS:
        options, measure = BENCHMARKS[argv[1]]
        for line in measure(parse(options, [options.command, *argv[2:]])):
            print(line, flush=True)
        return
    if wants_help(argv):
        raise HelpRequested("\n".join(help_text(options) for options, _ in BENCHMARKS.values()))
    raise UsageError(
        f"The first word must be a benchmark ({', '.join(BENCHMARKS)}), "
        f"but got {' '.join(argv[1:]) or 'nothing'}."
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
