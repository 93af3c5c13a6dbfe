"""Sphinx settings of the documentation, which is built without network (`make docs`)."""

import re
import sys
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT), str(DOCS), str(ROOT / "tools")]

import settings  # noqa: E402 - beside this file

import results  # noqa: E402 - in tools
from daskxml import __version__  # noqa: E402 - of this checkout, not of an installed one

project = "daskxml"
copyright = "the daskxml developers, BSD 3-Clause"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"daskxml {release}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3

default_role = "py:obj"  # `name` in a docstring links to what it names
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "none"  # docstrings describe the parameters
napoleon_google_docstring = False
# Several names may share a line and its text.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_param = False
napoleon_use_rtype = False

# Documents of the repository that are pages of the site as well.
PAGES = {
    "index": "README.md",
    "architecture": "ARCHITECTURE.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
}
INDEX = results.Index()
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def retarget(text: str, folder: Path, page: Path) -> str:
    """Return Markdown from a folder with its links as the site has them.

    What is no page, such as a result file, is copied into the site; a folder is only named.
    """
    by_document = {ROOT / document: DOCS / f"{name}.md" for name, document in PAGES.items()}

    def replace(match: re.Match[str]) -> str:
        is_picture, label, target, anchor = match.groups()
        path = (folder / target).resolve()
        path = by_document.get(path, path)
        if path.is_dir():
            return label
        is_page = path.is_relative_to(DOCS) and path.suffix == ".md"
        place = relpath(path, page.parent)
        if is_picture:
            return f"![{label}]({place})"
        return f"[{label}]({place}{anchor or ''})" if is_page else f"[{label}](path:{place})"

    return LINK.sub(replace, text)


def read_source(app, docname: str, source: list[str]) -> None:
    """Prepare a page's text; a page of `PAGES` begins with its document."""
    page = DOCS / f"{docname}.md"
    text = retarget(source[0], page.parent, page) + results.note(INDEX, source[0], page.parent)
    if docname in PAGES:
        document = ROOT / PAGES[docname]
        app.env.note_dependency(str(document))
        above = document.read_text()
        text = f"{retarget(above, ROOT, page)}{results.note(INDEX, above, ROOT)}\n{text}"
    source[0] = settings.fill(text)


def setup(app) -> None:
    """Register the reading of sources with Sphinx."""
    app.connect("source-read", read_source)
