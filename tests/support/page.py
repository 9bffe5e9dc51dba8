"""The report's page, taken apart."""

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The tags, the attributes and the text of a page, and what its script elements hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        # Inside a script or a style the parser reads no tags.
        inside = self.cdata_elem
        if inside != "style":
            (self.scripts if inside == "script" else self.words).append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def having(self, name: str) -> list[tuple[str, str | None]]:
        """The tags with an attribute of this name, and its values."""
        return [(tag, value) for tag, attribute, value in self.attributes if attribute == name]
