"""The catalogue's pages in Chromium: links, pictures, weight, narrow screens."""

from __future__ import annotations

import pytest

from .conftest import PHONE, Pages
from .site_of_registries import MOST_BYTES

pytestmark = pytest.mark.browser

# What a page has: its links, how wide and heavy it is, and its pictures that show nothing.
FACTS = """() => ({
  links: [...document.querySelectorAll("a[href]")].map((link) => link.href.replace(/#.*/, "")),
  width: document.documentElement.scrollWidth,
  bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, entry) => sum + entry.decodedBodySize, 0),
  blank: [...document.querySelectorAll("svg.chart")].filter((picture) => {
    const box = picture.getBoundingClientRect();
    return box.width < 200 || box.height < 50 || !picture.querySelector("path") || !picture.textContent.trim();
  }).length,
  pictures: document.querySelectorAll("svg.chart").length,
})"""


@pytest.mark.parametrize(
    ("served", "scheme", "most"), [("file", "light", 1000), ("http", "dark", 15)], indirect=["served"]
)
def test_every_link_leads_to_a_page_that_is_there_and_fits_a_phone(
    served: Pages, scheme: str, most: int, figures: list[str]
) -> None:
    """All pages as files; a server gives the same ones, of which the first are looked at."""
    page = served.open(viewport=PHONE, color_scheme=scheme)
    seen, waiting, pictures, heaviest = set[str](), [page.url], 0, 0
    while waiting and len(seen) < most:
        address = waiting.pop()
        seen.add(address)
        reply = page.goto(address)
        assert reply is not None and reply.ok and page.title(), address
        facts = page.evaluate(FACTS)
        assert facts["width"] <= PHONE["width"], address
        assert facts["blank"] == 0 and facts["bytes"] <= MOST_BYTES, address
        heaviest = max(heaviest, facts["bytes"])
        pictures += facts["pictures"]
        assert all(link.startswith(served.address) for link in facts["links"]), address
        waiting += sorted({*facts["links"]} - seen - {*waiting})  # sets differ from run to run
    assert len(seen) == most or (len(seen) > 70 and pictures > 5)
    figures.append(f"{served.address.partition(':')[0]}: {len(seen)} pages, the heaviest {heaviest / 1e3:.0f} kB")
