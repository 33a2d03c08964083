"""The runner's command line: recipes and flags parsed, checked, resolved, explained."""

import os
import pathlib
import textwrap

from experiments import recipes
from experiments.options.definitions import FLAGS, GROUPS, LOSS_ARGUMENTS
from experiments.training.run_folder import RunFolder

__all__ = [
    "FLAGS",
    "GROUPS",
    "LOSS_ARGUMENTS",
    "absolute",
    "forget",
    "help_text",
    "parse",
    "parse_all",
    "resolved",
    "run_folder",
    "wants_help",
    "whole_numbers",
]


def parse(argv):
    """Flag values from the command line, and the run's name: the recipe's or the dataset's.

    `--flagfile=NAME` is looked for in the current folder, then among the packaged recipes. Other
    flags override the recipe wherever they stand on the line.

    Raises:
        absl.flags.Error: unknown flags or values.
        ValueError: a flag file that is not there or cannot be read, left-over words.
    """
    recipe_words, name = [], None
    words, files = recipes.without_flagfiles(argv[1:])
    for path in map(recipes.find_recipe, files):
        recipe_words += recipes.read_recipe(path, FLAGS)
        name = path.stem
    parse_all(FLAGS, [argv[0], *recipe_words, *words])
    if FLAGS.data_dir:
        FLAGS.data_dir = os.path.normpath(os.path.expanduser(FLAGS.data_dir))
    return FLAGS, name or FLAGS.dataset or "run"


def parse_all(flag_values, argv):
    """Set a command's own flags anew from its command line.

    Raises:
        absl.flags.Error: unknown flags or values.
        ValueError: left-over words.
    """
    forget(flag_values)
    left_over = flag_values(argv)[1:]
    if left_over:
        raise ValueError(f"flags start with --. Received: {' '.join(left_over)}")


def absolute(text):
    """A path that a user gave, with ~ and relative ones resolved, links kept."""
    return pathlib.Path(os.path.abspath(os.path.expanduser(text)))


def whole_numbers(name, words):
    """The numbers of a list flag; ValueError unless all are whole and not negative."""
    if not all(word.strip().isdigit() for word in words):
        raise ValueError(
            f"{name} must be whole numbers with commas between them. "
            f"Received: {name}={','.join(words)}"
        )
    return tuple(int(word) for word in words)


def run_folder(options, name, writes=True):
    """The run's folder, made only when it is opened; `writes` as in `RunFolder`."""
    path = os.path.expanduser(options.output_dir or f"runs/{name}-seed{options.seed}")
    return RunFolder(path, resolved(options), writes)


def wants_help(argv):
    """Whether the command line asks for the flags instead of a run."""
    return any(word in ("--help", "-h", "-help", "--helpfull", "--helpshort") for word in argv[1:])


def forget(flag_values):
    """Take back what an earlier command line of this process has set."""
    flag_values.unparse_flags()
    for name in flag_values:
        flag_values[name].unparse()


def resolved(options):
    """All flags that have a value as the lines of a flag file, in the order of the groups."""
    return "".join(
        f"{options[name].serialize()}\n"
        for names in GROUPS.values()
        for name in names
        if options[name].value is not None and name != "output_dir"
    )


def help_text():
    """What `--help` prints: the flags by group, with their defaults."""
    known = ", ".join(recipes.names())
    lines = [
        "Train an embedding, evaluate it on classes never seen in training, write a report and a",
        "SavedModel.",
        "",
        "  python -m experiments.run --flagfile=RECIPE.flags [--flag=value ...]",
        "",
        *textwrap.wrap(f"Recipes: {known}.", 88),
        "A flag given here overrides the recipe's; a recipe may name another by --flagfile.",
        "A killed run goes on where it stopped when the same command is given again.",
    ]
    for group, names in GROUPS.items():
        lines += ["", group]
        for name in names:
            flag = FLAGS[name]
            shown = flag.default_as_str.strip("'") if flag.default is not None else ""
            lines.append(f"  --{name}={shown}")
            lines += textwrap.wrap(flag.help, 88, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"
