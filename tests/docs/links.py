"""The links of a built site: what its pages point to, and what is not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

# What a browser fetches by itself to show a page; <a> waits for a click.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@dataclass
class Page(HTMLParser):
    """One page: its anchors, where its links lead, what is fetched to show it."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if FETCHED.get(tag) in found and found.get("rel") != "canonical":
            self.fetched.append(found[FETCHED[tag]])


def read_page(text: str) -> Page:
    page = Page()
    page.feed(text)
    return page


def read_site(folder: Path) -> dict[str, Page]:
    """Every page by its path under the folder."""
    return {
        str(path.relative_to(folder)): read_page(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
    }


def is_external(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def dead_links(pages: Mapping[str, Page], files: set[str]) -> Iterator[str]:
    """Links and fetched files of the site that are not there, and anchors that their page does not have."""
    for name, page in pages.items():
        for link in filter(lambda link: not is_external(link), (*page.links, *page.fetched)):
            target = urlsplit(urljoin(f"/{name}", link))
            path, anchor = unquote(target.path).lstrip("/"), unquote(target.fragment)
            path = f"{path}index.html" if path.endswith("/") or not path else path
            if path not in files or (anchor and path in pages and anchor not in pages[path].ids):
                yield f"{name}: {link}"


def fetched_from_elsewhere(pages: Mapping[str, Page]) -> list[str]:
    """What pages fetch from other machines."""
    return [f"{name}: {link}" for name, page in pages.items() for link in page.fetched if is_external(link)]
