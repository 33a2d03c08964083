"""`python -m experiments.benchmark BENCHMARK`: measure speed, memory, and scores."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from experiments import options
from experiments.benchmarks import end_to_end, losses, retrieval

BENCHMARKS: dict[str, tuple[type[options.Options], Callable[[Any], Iterator[str]]]] = {
    "losses": (losses.LossesOptions, losses.measure),
    "end_to_end": (end_to_end.EndToEndOptions, end_to_end.measure),
    "retrieval": (retrieval.RetrievalOptions, retrieval.measure),
}
"""The options of each benchmark, and the function that yields the lines of its table."""


def main(argv: list[str]) -> None:
    """Print the table of a benchmark, line by line."""
    if len(argv) > 1 and argv[1] in BENCHMARKS:
        kind, measure = BENCHMARKS[argv[1]]
        for line in measure(options.parse(kind, [kind.command, *argv[2:]])):
            print(line, flush=True)
        return
    if options.wants_help(argv):
        raise options.HelpRequested(
            "\n".join(options.help_text(kind) for kind, _ in BENCHMARKS.values())
        )
    raise options.UsageError(
        f"The first word must be a benchmark ({', '.join(BENCHMARKS)}), "
        f"but got {' '.join(argv[1:]) or 'nothing'}."
    )


if __name__ == "__main__":
    sys.exit(options.run_command(main))
