"""What the site has beyond the pages in docs/: the gallery, tutorials from notebooks, and files of the repository.

Documents link to sources, examples and the changelog, which lie outside docs/. Each such file becomes a page of
the site, so that no link leads to the network or nowhere.
"""

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import gallery

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
PLACES = {"README.md": "README.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that have a place of their own in the site."""
LEXERS = {".py": "python", ".toml": "toml", ".sh": "bash", ".ipynb": "json", ".cff": "yaml"}

_origins: dict[str, Path] = {}
"""Where the text of a page comes from, by its address in the site."""


def on_config(config: Any) -> Any:
    """The navigation gets the pages of the gallery."""
    config.nav = [{"Methods": gallery.nav()} if entry == {"Methods": "GALLERY"} else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add every page that is made rather than written."""
    _origins.clear()
    for uri, text in gallery.pages().items():
        files.append(File.generated(config, uri, content=text))
        _origins[uri] = DOCS / uri
    for path in sorted(DOCS.rglob("*.ipynb")):
        uri = path.relative_to(DOCS).with_suffix(".md").as_posix()
        _add(files, config, uri, path)
    waiting = [ROOT / name for name in PLACES if name != "README.md"]
    for file in files.documentation_pages():
        waiting += _outside(file.content_string, _origin(file.src_uri))
    while waiting:
        path = waiting.pop()
        uri = _uri(path)
        if files.get_file_from_path(uri) is None:
            waiting += _outside(_add(files, config, uri, path), path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links lead to the pages that their targets have become."""
    if page.file.src_uri == gallery.OVERVIEW:
        markdown = gallery.linked(markdown)
    origin = _origin(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        path, anchor = _target(match[2], origin)
        if path is None or not path.exists():
            return match[0]
        where = posixpath.relpath(_uri(path), posixpath.dirname(page.file.src_uri) or ".")
        return f"{match[1]}{where}{anchor}{match[3]}"

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def _origin(uri: str) -> Path:
    return _origins.get(uri, DOCS / uri)


def _target(link: str, origin: Path) -> tuple[Path | None, str]:
    """The file that a link names, if it names one, and its anchor."""
    name, mark, anchor = link.partition("#")
    if not name or re.match(r"\w+:", name):
        return None, ""
    path = (origin.parent / name).resolve()
    return (path if path.is_relative_to(ROOT) else None), mark + anchor


def _uri(path: Path) -> str:
    """The address of a file in the site."""
    if path.is_relative_to(DOCS):
        uri = path.relative_to(DOCS)
        return (uri.with_suffix(".md") if path.suffix == ".ipynb" else uri).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return PLACES.get(name, f"source/{name}" if path.suffix == ".md" else f"source/{name}.md")


def _outside(text: str, origin: Path) -> list[Path]:
    """The files outside docs/ that a text links to."""
    found = []
    for _, link, _ in LINK.findall(FENCED.sub("", text)):
        path, _ = _target(link, origin)
        if path is not None and not path.is_relative_to(DOCS) and path.exists():
            found.append(path)
    return found


def _add(files: Files, config: Any, uri: str, path: Path) -> str:
    """A page for a file outside the written pages; returns its text."""
    if path.is_dir():
        inside = sorted(each.name for each in path.iterdir() if not each.name.startswith(("_", ".")))
        text = "\n".join([f"# {path.name}\n", *(f"- [{name}]({path.name}/{name})" for name in inside)])
    elif path.suffix == ".ipynb":
        text = _notebook(path)
    elif path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
    else:
        name, lexer = path.relative_to(ROOT).as_posix(), LEXERS.get(path.suffix, "text")
        text = f"# {name}\n\n````{lexer}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"
    if uri.startswith("source/"):
        text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
    files.append(File.generated(config, uri, content=text))
    _origins[uri] = path
    return text


def _notebook(path: Path) -> str:
    """A notebook as a page: its text, its code and what the code showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                parts.append(
                    f'<img class="output" alt="Output of the cell above" src="data:image/png;base64,{image}">'
                )
            elif "text/markdown" in data:
                parts.append("".join(data["text/markdown"]))
            else:
                shown = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text {{.output}}\n{shown.rstrip()}\n```")
    download = f'<a href="{path.name}" download>Download this page as a notebook</a>'
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n{download}\n{rest}\n"
