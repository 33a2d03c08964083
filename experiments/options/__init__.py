"""The command line: the options of the commands, their parsing, and their help.

`parse` returns a frozen object of a command's options class. Nothing else reads the command line.
`experiments.options.data` needs TensorFlow and creates the data that the options describe.
"""

from experiments.options.command_line import mute, run_command
from experiments.options.declaration import Flag, Options, declarations, flags_of, option
from experiments.options.errors import FindingsError, HelpRequested, RunError, UsageError, one_line
from experiments.options.help import help_text
from experiments.options.parsing import (
    command_line_only_words,
    given_words,
    parse,
    refuse_unused,
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
    "refuse_unused",
    "resolved",
    "run_command",
    "wants_help",
    "words_of",
]
