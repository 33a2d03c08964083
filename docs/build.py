"""Build the site from `docs/pages` and the docstrings: `python docs/build.py` (extra `docs`).

Writes `site/`, or `FOLDER/site/` with an argument FOLDER. A warning fails the build. Pages load no
fonts, scripts, or pictures from other hosts. Generated pages: the files of the repository's root,
one page for each loss, and all flags. `docs/notebooks.py` writes the notebooks of pages.
"""

import ast
import importlib
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "build" / "pages", ROOT / "site"
REPOSITORY = {
    "BUILD.md": "building",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CHANGELOG.md": "changes",
}
# Titles of the reference pages, one for each package or module, next to `api/losses`.
MODULES = {
    "keras_dml.addons": "Losses of TensorFlow Addons",
    "keras_dml.mining": "Mining",
    "keras_dml.metrics": "Metrics",
    "keras_dml.relations": "Relations",
    "keras_dml.layers": "Layers",
    "keras_dml.models": "Models",
    "keras_dml.callbacks": "Callbacks",
    "keras_dml.optimizers": "Optimizers",
    "keras_dml.retrieval": "Retrieval",
    "keras_dml.upgrade": "Upgrades",
    "keras_dml.export": "Export",
    "pipelines": "Pipelines",
}
_TITLE_ONLY = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n"
# Sections of the navigation: page, title, and subpages.
SECTIONS = {
    "guides": ("Guides", [
        "guides/photographs", "guides/keras", "guides/custom_data", "guides/losses",
        "guides/custom_loss", "guides/relations", "guides/training_loop", "guides/evaluation",
        "guides/finetuning", "guides/devices", "guides/backends", "guides/serving",
        "guides/exporting", "guides/stores", "guides/upgrade", "guides/datasets", "guides/runs",
        "guides/migrating", "guides/theory", "guides/errors",
    ]),
    "tutorials": ("Tutorials", [
        f"tutorials/{name}" for name in (
            "metric_learning", "image_similarity_search", "supervised_contrastive",
            "siamese_triplets", "siamese_contrastive", "near_duplicates",
            "natural_language_image_search",
        )
    ]),
    "reference": ("Reference", [
        "api/losses", *(f"api/{module.split('.')[-1]}" for module in MODULES), "flags",
    ]),
    "measured": ("Results", [
        "results", "recipes_fidelity", "results/tuning", "results/evaluation",
        "results/information", "results/papers", "results/relations", "results/hard_classes",
        "results/serving", "results/upgrade", "results/reranking", "results/sampled_proxies",
        "results/benchmarks", "results/faults",
    ]),
    "project": ("Project", list(REPOSITORY.values())),
}  # fmt: skip


def main() -> int:
    """Write the pages to the source folder, and run Sphinx."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(ROOT))

    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "pages", SOURCE)
    for name, page in REPOSITORY.items():
        _write(page, (ROOT / name).read_text("utf-8").replace("](docs/pages/", "]("))
    for page, (title, subpages) in SECTIONS.items():
        _write(page, f"# {title}\n\n{_toctree(subpages, ':maxdepth: 1')}")
    _write("flags", _flags())
    _write_reference()
    index = SOURCE / "index.md"
    _write("index", index.read_text("utf-8") + _toctree(["start", *SECTIONS], ":hidden:"))
    _write_notebooks()
    for path in SOURCE.rglob("*.md"):
        path.write_text(_with_links_of_the_site(path), "utf-8")
        path.write_text(_typeset(path.read_text("utf-8")), "utf-8")
    from sphinx.cmd import build

    return build.main(
        ["-W", "--keep-going", "-q", "-j", "2", "-c", str(ROOT / "docs"), str(SOURCE), str(SITE)]
    )


def _write_notebooks() -> None:
    """Write the notebooks next to their pages, which get a link below the title."""
    from notebooks import has_notebook, notebook

    for path in sorted(SOURCE.rglob("*.md")):
        if has_notebook(path.relative_to(SOURCE).with_suffix("").as_posix()):
            text = path.read_text("utf-8")
            file = path.with_suffix(".ipynb")
            file.write_text(notebook(text), "utf-8")
            link = f"[Download this page as a notebook]({file.name})"
            path.write_text(re.sub(r"\A(# .*\n)", rf"\1\n{link} for Jupyter.\n", text), "utf-8")


def _write(page: str, text: str) -> None:
    path = SOURCE / f"{page}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])


def _with_links_of_the_site(path: pathlib.Path) -> str:
    """Return a page whose links to losses and to the repository's files lead to pages."""
    up = "../" * (len(path.relative_to(SOURCE).parts) - 1)
    text = re.sub(
        r"\]\([./]*api/losses\.md#keras_dml\.losses\.(\w+)\)",
        rf"]({up}api/losses/\1.md)",
        path.read_text("utf-8"),
    )
    for name, page in {**REPOSITORY, "README.md": "index"}.items():
        text = re.sub(rf"\]\([./]*{re.escape(name)}", f"]({up}{page}.md", text)
    return text


def _typeset(page: str) -> str:
    """Return a page with the LaTeX of the formulas in code spans."""
    from formulas import with_formulas

    parts = re.split(r"(^```.*?^```$)", page, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [with_formulas(part, "${}$") for part in parts[::2]]
    return "".join(parts)


def _write_reference() -> None:
    """Write a page for each module, and for each loss."""
    for module, title in MODULES.items():
        entry = _directive(f"automodule:: {module}", ":members:", ":imported-members:")
        _write(f"api/{module.split('.')[-1]}", f"# {title}\n\n{entry}")
    losses = SOURCE / "api" / "losses.md"
    _write("api/losses", f"{losses.read_text('utf-8')}\n{_losses()}")


def _losses() -> str:
    """Write a page for each public name, which the package imports as `X as X`.

    Returns:
        A table of the names, and the navigation.
    """
    package = importlib.import_module("keras_dml.losses")
    tree = ast.parse(pathlib.Path(package.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
    rows = []
    for name in sorted(names):
        # All losses have the methods of their base classes.
        members = [] if name.endswith("Loss") and name != "EmbeddingLoss" else [":members:"]
        entry = _directive(f"autoclass:: keras_dml.losses.{name}", *members)
        _write(f"api/losses/{name}", f"{_TITLE_ONLY}# {name}\n\n{entry}")
        first = (getattr(package, name).__doc__ or "").strip().split("\n")[0]
        rows.append(f"| [`{name}`](losses/{name}.md) | {first} |\n")
    pages = [f"api/losses/{name}" for name in sorted(names)]
    return f"| name | |\n| --- | --- |\n{''.join(rows)}{_toctree(pages, ':hidden:')}"


def _directive(name: str, *options: str) -> str:
    return "\n".join(["```{eval-rst}", f".. {name}", *(f"   {each}" for each in options), "```\n"])


def _flags() -> str:
    """Return a page with the flags of all commands."""
    from experiments.options.declared import declarations, shown

    for path in sorted((ROOT / "experiments").rglob("*.py")):
        if re.search(r"^    command = ", path.read_text("utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found: dict[str, dict[str, list[str]]] = {}
    for options in _subclasses(importlib.import_module("experiments.options.declared").Options):
        if not options.command or options.__name__.startswith("_"):
            continue
        command = options.command.removeprefix("experiments.")
        for name, (_, _, flag) in declarations(options).items():
            default = shown(flag.default)
            entry = f"{flag.description}\n\nDefault: {f'`{default}`' if default else 'none'}."
            if flag.choices:
                entry += f" One of {', '.join(f'`{word}`' for word in flag.choices)}."
            commands = found.setdefault(name, {}).setdefault(entry, [])
            if command not in commands:
                commands.append(command)
    lines = [
        "# Flags\n\nThe flags of all commands, as in `--helpfull`. `--NAME=none` unsets a flag "
        "whose default is none.\n"
    ]
    for name, entries in sorted(found.items()):
        lines.append(f"## `--{name}`\n")
        for entry, commands in entries.items():
            lines.append(f"{entry} Commands: {', '.join(f'`{each}`' for each in commands)}.\n")
    return "\n".join(lines)


def _subclasses(parent: type) -> list[type]:
    return [each for child in parent.__subclasses__() for each in (child, *_subclasses(child))]


if __name__ == "__main__":
    if sys.argv[1:]:
        SOURCE, SITE = (pathlib.Path(sys.argv[1], name).resolve() for name in ("pages", "site"))
    sys.exit(main())
