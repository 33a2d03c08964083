"""MkDocs hooks: pages from files of the repository's root, and the reference of the losses."""

import ast
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
    "BUILD.md": "building.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changes.md",
    "README.md": "index.md",
}


def on_files(files, config):
    """Add BUILD.md and similar files, with links to pages of the site."""
    for name, page in PAGES.items():
        if page != "index.md":
            text = (ROOT / name).read_text("utf-8")
            files.append(File.generated(config, page, content=_with_site_links(text)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Add the reference of the public losses, which the package imports as `X as X`."""
    if page.file.src_uri != "api/losses.md":
        return markdown
    source = (ROOT / "keras_dml" / "losses" / "__init__.py").read_text("utf-8")
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names if alias.asname == alias.name]
    # All losses have the methods of their base class.
    no_members = "    options:\n      members: false\n"
    return markdown + "".join(
        f"\n::: keras_dml.losses.{name}\n{'' if name == 'EmbeddingLoss' else no_members}"
        for name in sorted(names)
    )


def _with_site_links(text):
    text = re.sub(r"\]\(docs/pages/", "](", text)
    for name, page in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text
