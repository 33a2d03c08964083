"""How the project is built, in numbers: `python .ci/structure.py [CHECKOUT ...]`.

Modules and import arrows of `experiments`, the longest function, functions with 7 or more
arguments, mypy's errors (where mypy is installed); a column for each checkout, to compare an older
commit (`git worktree add /tmp/before COMMIT`) with this one. Needs the standard library alone.
"""

import ast
import pathlib
import re
import subprocess
import sys

PACKAGES = ("keras_dml", "pipelines", "experiments")
# What mypy is asked of which packages.
TYPED = {"--strict": ("keras_dml", "pipelines"), "--disallow-untyped-defs": ("experiments",)}
# Of what they import nothing is counted.
QUIET = ("--ignore-missing-imports", "--follow-imports=silent")
MANY = 7


def modules(root, package):
    """Path by name of each module of a package."""
    named = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        named[".".join(part for part in parts if part != "__init__")] = path
    return named


def arrows(known):
    """Pairs (who, whom) of modules among these, imports within functions too."""
    found = set()
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                imported = [name if name in known else node.module for name in inner]
            else:
                continue
            found |= {(module, name) for name in imported if name in known and name != module}
    return found


def functions(root):
    """(lines, arguments but self, name) of each function."""
    for package in PACKAGES:
        for module, path in modules(root, package).items():
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    taken = node.args
                    named = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
                    count = sum(argument.arg not in ("self", "cls") for argument in named)
                    yield node.end_lineno - node.lineno + 1, count, f"{module}.{node.name}"


def mypy_errors(root, option):
    """How many errors mypy finds with an option in the packages of it, as text."""
    command = [sys.executable, "-m", "mypy", option, *QUIET, *TYPED[option]]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if "Success" in run.stdout:
        return "0"
    summary = re.search(r"Found (\d+) errors?", run.stdout)
    return summary[1] if summary else "no mypy here"


def figures(root):
    """Each figure by its name, as text."""
    commands = modules(root, "experiments")
    all_functions = list(functions(root))
    lines, _, longest = max(all_functions)
    return {
        "modules in experiments": str(len(commands)),
        "of them in its top folder": str(sum(name.count(".") == 1 for name in commands)),
        "import arrows in experiments": str(len(arrows(commands))),
        "longest function, lines": f"{lines} ({longest})",
        f"functions with {MANY} or more arguments": str(
            sum(count >= MANY for _, count, _ in all_functions)
        ),
        "modules without a test file of their name": str(len(untested(root))),
        **{
            f"mypy {option}, errors in {' and '.join(packages)}": mypy_errors(root, option)
            for option, packages in TYPED.items()
        },
    }


def untested(root):
    """Modules that no test file is named after."""
    tested = {path.stem.removeprefix("test_") for path in (root / "tests").rglob("test_*.py")}
    every = [path for package in PACKAGES for path in modules(root, package).values()]
    return [path for path in every if not path.stem.startswith("__") and path.stem not in tested]


def main(checkouts):
    """Print a table in Markdown, a column for each checkout."""
    here = pathlib.Path(__file__).resolve().parents[1]
    roots = [pathlib.Path(checkout).resolve() for checkout in checkouts] or [here]
    for root in roots:
        if not (root / "experiments").is_dir():
            print(f"error: no checkout of the project: {root}", file=sys.stderr)
            return 2
    columns = [figures(root) for root in roots]
    print(f"| | {' | '.join(root.name for root in roots)} |")
    print(f"| --- |{' ---: |' * len(roots)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
