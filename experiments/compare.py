"""`python -m experiments.compare --recipes=A.flags,B.flags`: several recipes side by side."""

import fnmatch
import html
import json
import pathlib
import subprocess
import sys

from absl import flags

from experiments import recipes as packaged
from experiments.options.child import child_command, child_environment
from experiments.options.command_line import RunError, run_command, usage_errors
from experiments.options.flags import forget, wants_help
from experiments.report.figures import bars_svg, lines_svg
from experiments.report.page import picture_cards, write_page
from keras_dml.atomic import replacing

FLAGS = flags.FlagValues()
flags.DEFINE_list("recipes", [], "Recipes, or patterns such as glyphs_*.", flag_values=FLAGS)
flags.DEFINE_string("output_dir", "runs/compare", "Where the runs go.", flag_values=FLAGS)

HELP = """Run several recipes and compare them: a table, a bar chart, the curves.

  python -m experiments.compare --recipes=A.flags,B.flags [--output_dir=DIR] [--flag=value ...]

  --recipes=
      Recipes, here or among the packaged ones; patterns such as glyphs_*.flags.
  --output_dir=runs/compare
      Each recipe's run goes into a folder of its own in it; comparison.html and comparison.md
      beside them.

Every other flag goes to each run (see python -m experiments.run --help). Repeating the command
continues where it stopped; finished runs are not run again.
"""
# Losses of many kinds have no scale in common.
_MOST_LOSSES = 4
ROW_KEYS = ("embedding, cosine", "embedding, l2")


def main(argv):
    """Run what is missing, then compare all."""
    if wants_help(argv):
        print(HELP)
        return
    with usage_errors():
        recipes, output, forwarded = _parse(argv)
    rows, histories = [], {}
    for number, recipe in enumerate(recipes, start=1):
        folder = output / recipe.stem
        print(f"[{number}/{len(recipes)}] {recipe.stem}", flush=True)
        _run(recipe, folder, forwarded)
        result = json.loads((folder / "result.json").read_text())
        rows.append(_row(recipe.stem, result))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        histories[recipe.stem] = [json.loads(line) for line in lines]
    rows.sort(key=lambda row: -row["R@1, cosine"])
    table = _table(rows)
    with replacing(output / "comparison.md") as temporary:
        temporary.write_text(table + "\n")
    _write_page(output / "comparison.html", rows, histories, forwarded)
    best = rows[0]
    print(f"\n{table}\n\nbest: {best['recipe']}, cosine R@1 {best['R@1, cosine']:.1f} %")
    print(f"pictures: {output / 'comparison.html'}")


def _parse(argv):
    forget(FLAGS)
    forwarded = FLAGS(argv, known_only=True)[1:]
    words = [word for word in forwarded if not word.startswith("--")]
    if words:
        raise ValueError(f"flags start with -- and hold their value. Received: {words[0]}")
    found = []
    for name in FLAGS.recipes:
        matches = [name]
        if any(mark in name for mark in "*?["):
            matches = fnmatch.filter(
                packaged.names(), name if name.endswith(".flags") else f"{name}.flags"
            )
            if not matches:
                raise ValueError(f"recipes has a pattern that no recipe matches. Received: {name}")
        found += [packaged.find_recipe(match) for match in matches]
    if not found:
        raise ValueError("recipes must name at least one recipe. Received: no recipes")
    names = [path.stem for path in found]
    if len(set(names)) < len(names):
        raise ValueError(f"recipes must differ in name. Received: recipes={','.join(names)}")
    return found, pathlib.Path(FLAGS.output_dir), forwarded


def _run(recipe, folder, forwarded):
    # In a process of its own: a run sets TensorFlow's seed, precision and devices for good.
    words = (f"--flagfile={recipe}", *forwarded, f"--output_dir={folder}")
    done = subprocess.run(
        child_command("experiments.run", *words),
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise RunError(f"{recipe.stem} ended with code {done.returncode}; what it said is above")


def _row(name, result):
    recall = result["recall"]
    row = {"recipe": name}
    for key in ROW_KEYS:
        row[f"R@1, {key.split(', ')[1]}"] = 100 * recall[key]["1"]
    # A run of an earlier version has none; NaN, without any class of two images, is None.
    precision = result.get("scores", {}).get("map@r/cosine")
    row["MAP@R, cosine"] = None if precision is None else 100 * precision
    if "accuracy" in result:
        row["accuracy"] = 100 * result["accuracy"]
    return {**row, "training, s": result["train_seconds"], "whole run, s": result["seconds"]}


def _table(rows):
    """The rows as a Markdown table, columns aligned."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns] + [[_shown(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        "| " + " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + " |"
        for line in cells
    ]
    rule = "| " + " | ".join(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def _shown(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.1f}"


def _write_page(path, rows, histories, forwarded):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(row["recipe"])}</th>'
        + "".join(f"<td>{_shown(row.get(name))}</td>" for name in columns[1:])
        + "</tr>"
        for row in rows
    )
    pictures = {
        "R@1, cosine": bars_svg({row["recipe"]: row["R@1, cosine"] for row in rows}),
        "R@1 over epochs": lines_svg("recall", histories, "test/recall@1/cosine", 100, "R@1, %"),
        "Accuracy over epochs": lines_svg("accuracy", histories, "test/accuracy", 100, "%"),
    }
    if len(rows) <= _MOST_LOSSES:
        pictures["Training loss"] = lines_svg("loss", histories, "train/loss", label="loss")
    given = f'<p class="soft">{html.escape(" ".join(forwarded))}</p>' if forwarded else ""
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    write_page(
        path,
        "Comparison",
        f'{given}<section class="card scroll">{table}</section>\n{picture_cards(pictures)}',
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
