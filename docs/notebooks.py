"""Notebooks of the pages: the tutorials and the two guides that a reader types along.

A block of `python` becomes a cell of code, and the block of `text` below it the output of the cell.
A block of `sh` becomes a cell of commands.
"""

import re

import jupytext
from nbformat import NotebookNode, v4

GUIDES = ("guides/photographs", "guides/keras")
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OUTPUT = re.compile(r"```text\n(.*?)^```\s*", re.DOTALL | re.MULTILINE)
# A link to another page, which a notebook lies far from. A link alone in parentheses goes.
_LINK = r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\((?!https?:)[^)]*\)"


def has_notebook(page: str) -> bool:
    """Return whether a page, such as `guides/keras`, has a notebook."""
    return page.startswith("tutorials/") or page in GUIDES


def notebook(page: str) -> str:
    """Return the notebook of a page's Markdown as the text of an `.ipynb` file."""
    text = re.sub(_LINK, r"\1", re.sub(rf"\s\({_LINK}\)", "", page))
    found = jupytext.reads(_SHELL.sub(_commands, text), fmt="md")
    cells: list[NotebookNode] = []
    for cell in found.cells:
        output = _OUTPUT.match(cell.source)
        if output and cells and cells[-1].cell_type == "code":
            cells[-1].outputs = [v4.new_output("stream", name="stdout", text=output[1])]
            cell.source = cell.source[output.end() :]
        if cell.source:
            cells.append(cell)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # jupytext draws other ids for each build
    found.cells = cells
    found.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return jupytext.writes(found, fmt="ipynb")


def _commands(block: re.Match[str]) -> str:
    """Return a cell for the commands of a shell. A server, which never ends, stays text."""
    if "--serve" in block[1]:
        return block[0].replace("```sh", "```").replace(".venv/bin/", "")
    lines = [_command(line) for line in block[1].replace("\\\n", " ").splitlines()]
    return "\n".join(["```python", *lines, "```"])


def _command(line: str) -> str:
    words = line.removeprefix(".venv/bin/")
    if words.startswith("pip "):
        return "%" + re.sub(r"-e '\.\[([\w,]+)\]'", r"'keras-dml[\1]'", words)
    return f"!{words}"
