"""Tables are sorted by their headings, and the heat map is filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import Pages

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser


def column(table: Locator, number: int) -> list[str]:
    """The texts of a column, from 1."""
    return [text.strip() for text in table.locator(f"tbody tr > :nth-child({number})").all_inner_texts()]


def gains(texts: list[str]) -> list[float]:
    return [float(text.rstrip("×").replace(",", "")) for text in texts if text]


def press_heading(page: Page, table: Locator, name: str) -> None:
    """By keyboard."""
    table.get_by_role("button", name=name).focus()
    page.keyboard.press("Enter")


def test_a_heading_sorts_its_table_both_ways_with_empty_cells_last(pages: Pages) -> None:
    page = pages.open("list/networks.html")
    table = page.locator("table.sortable")
    before = column(table, 1)
    press_heading(page, table, "Best gain")
    falling = column(table, 4)
    assert gains(falling) == sorted(gains(falling), reverse=True) and falling[-1] == ""
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("Best gain")
    press_heading(page, table, "Best gain")
    rising = column(table, 4)
    assert gains(rising) == sorted(gains(falling)) and rising[-1] == ""
    press_heading(page, table, "Network")
    assert column(table, 1) != before and sorted(column(table, 1)) == sorted(before)
    assert table.locator("th[aria-sort]").count() == 1


def test_sizes_are_sorted_as_numbers(pages: Pages) -> None:
    page = pages.open("list/packages.html")
    table = page.locator("table.sortable")
    press_heading(page, table, "Size")
    sizes = [int(cell.get_attribute("data-value") or "") for cell in table.locator("td[data-value]").all()]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) >= 6


def test_the_heat_map_shows_one_type_or_release_alone(pages: Pages) -> None:
    page = pages.open()
    rows = page.locator("table.heat tbody tr:visible")
    every = rows.count()
    page.locator("[data-filter=dtype]").select_option("float16")
    half = rows.count()
    assert 0 < half < every
    assert page.locator("table.heat td a:visible:not([data-dtype=float16])").count() == 0
    assert page.locator("#heat-filters [role=status]").inner_text() == f"{half} of {every} networks"
    page.locator("[data-filter=dtype]").select_option("")
    page.locator("[data-filter=tvm]").select_option("0.19")
    assert 0 < rows.count() < every
    assert page.locator("table.heat td a:visible:not([data-tvm~='0.19'])").count() == 0
