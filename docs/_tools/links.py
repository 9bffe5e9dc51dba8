"""Opens every external link of the documents and lists those that do not answer. Needs a network.

    python docs/_tools/links.py [--seconds 20] [FILE.md …]

Internal links are checked by the tests and by `make docs`. Addresses of this machine and of examples are skipped.
The exit code is 1 if a link is broken.
"""

import argparse
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>")
NOWHERE = re.compile(r"https?://(localhost|127\.|192\.0\.2\.|example\.)")
AGENT = {"User-Agent": "Mozilla/5.0 (the links of fedacg's documents)"}
REFUSES_HEAD = {403, 405, 501}
"""Answers of servers that may still give the page itself."""


def documents() -> list[Path]:
    """All Markdown files of the repository that readers see."""
    folders = (ROOT / "docs", ROOT / "examples", ROOT / "benchmarks" / "peers")
    return [*sorted(ROOT.glob("*.md")), *(page for folder in folders for page in sorted(folder.rglob("*.md")))]


def external(pages: Sequence[Path]) -> dict[str, list[Path]]:
    """The addresses in these pages, without the part behind #, and the pages that have them."""
    found: dict[str, list[Path]] = {}
    for page in pages:
        for pair in LINK.findall(page.read_text(encoding="utf-8")):
            address = "".join(pair).partition("#")[0]
            if not NOWHERE.match(address) and page not in found.setdefault(address, []):
                found[address].append(page)
    return found


def problem(address: str, seconds: float) -> str:
    """Why a link is broken; empty if it answers."""
    try:
        try:
            _open(address, "HEAD", seconds)
        except urllib.error.HTTPError as error:
            if error.code not in REFUSES_HEAD:
                raise
            _open(address, "GET", seconds)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except urllib.error.URLError as error:
        return str(error.reason)
    except OSError as error:
        return str(error)
    return ""


def _open(address: str, method: str, seconds: float) -> None:
    request = urllib.request.Request(address, headers=AGENT, method=method)
    with urllib.request.urlopen(request, timeout=seconds):
        pass


def check(links: Mapping[str, Sequence[Path]], seconds: float) -> dict[str, str]:
    """The broken links, each with the reason; eight are opened at a time."""
    with ThreadPoolExecutor(8) as pool:
        reasons = pool.map(lambda address: problem(address, seconds), links)
        return {address: reason for address, reason in zip(links, reasons, strict=True) if reason}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=20, help="how long to wait for an answer")
    arguments = parser.parse_args()
    links = external(arguments.pages or documents())
    broken = check(links, arguments.seconds)
    for address, reason in broken.items():
        print(f"{address}: {reason}; in {', '.join(map(str, links[address]))}")
    print(f"{len(links)} links, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
