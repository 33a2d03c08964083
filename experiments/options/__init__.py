"""The command line: the options of the commands, their parsing, and their help.

absl parses. `parse` returns a frozen object of a command's options class, and nothing else reads
the command line.
`experiments.options.data` needs TensorFlow and creates the data that the options describe.
"""

from experiments.options.absl_flags import check_together as check_together
from experiments.options.absl_flags import help_text as help_text
from experiments.options.command_line import mute as mute
from experiments.options.command_line import run_command as run_command
from experiments.options.command_words import command_line_only_words as command_line_only_words
from experiments.options.command_words import given_words as given_words
from experiments.options.command_words import parse as parse
from experiments.options.command_words import refuse_unused as refuse_unused
from experiments.options.command_words import resolved as resolved
from experiments.options.command_words import wants_help as wants_help
from experiments.options.command_words import words_of as words_of
from experiments.options.declared import Flag as Flag
from experiments.options.declared import Options as Options
from experiments.options.declared import declarations as declarations
from experiments.options.declared import flags_of as flags_of
from experiments.options.declared import option as option
from experiments.options.errors import FindingsError as FindingsError
from experiments.options.errors import HelpRequested as HelpRequested
from experiments.options.errors import RunError as RunError
from experiments.options.errors import UsageError as UsageError
from experiments.options.errors import one_line as one_line
from experiments.options.run_options import RunOptions as RunOptions
from experiments.options.run_options import given_for_run as given_for_run
