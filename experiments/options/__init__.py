"""The command line: what options a command has, how they are read, explained and refused.

Options are a value: `parse` makes a frozen object of a command's options class, and nothing below a
command reads anything else. `experiments.options.data` (which needs TensorFlow) makes of them what
they describe of the data.
"""

from experiments.options.command_line import mute, run_command
from experiments.options.declaration import Flag, Options, declarations, flags_of, option
from experiments.options.errors import FindingsError, HelpRequested, RunError, UsageError, one_line
from experiments.options.help import help_text
from experiments.options.parsing import (
    command_line_only_words,
    given_words,
    parse,
    resolved,
    wants_help,
    words_of,
)
from experiments.options.run_options import RunOptions

__all__ = [
    "FindingsError",
    "Flag",
    "HelpRequested",
    "Options",
    "RunError",
    "RunOptions",
    "UsageError",
    "command_line_only_words",
    "declarations",
    "flags_of",
    "given_words",
    "help_text",
    "mute",
    "one_line",
    "option",
    "parse",
    "resolved",
    "run_command",
    "wants_help",
    "words_of",
]
