"""The search: parts of words, by keyboard alone, and names that want to be scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import Pages
from .site_of_registries import HOSTILE

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def found(page: Page, text: str) -> list[tuple[str, str]]:
    """What the search answers: kinds and names."""
    page.keyboard.press("/")
    page.evaluate("document.getElementById('found-status').textContent = ''")  # that of the last search
    page.locator("#query").fill(text)
    page.locator("#found-status:not(:empty)").wait_for(state="attached")  # CSP forbids to evaluate a function
    assert "could not be read" not in page.locator("#found-status").inner_text()
    options = page.locator("#found [role=option]")
    return [(each.locator(".tag").inner_text(), each.locator(".name").inner_text()) for each in options.all()]


@pytest.mark.parametrize("served", ["file", "http"], indirect=True)
def test_packages_networks_and_targets_are_found_by_parts_of_words(served: Pages) -> None:
    page = served.open("trust.html")
    assert {("package", "llvm-znver5"), ("target", "llvm-znver5")} <= {*found(page, "ZNV")}
    assert found(page, "toynet") == [("network", "toynet-3")]
    assert found(page, "net toy") == [("network", "toynet-3")]
    assert found(page, "nvidia toy") == [("package", "cuda-toy9000"), ("target", "cuda-toy9000")]
    assert found(page, "resnet50")[0] == ("network", "resnet50")
    assert found(page, "no such thing") == []
    assert "Nothing" in page.locator("#found").inner_text()


@pytest.mark.parametrize("served", ["file", "http"], indirect=True)
def test_the_search_works_by_keyboard(served: Pages) -> None:
    page = served.open("list/networks.html")
    names = found(page, "znver")
    query, box = page.locator("#query"), page.locator("#found")
    assert page.evaluate("document.activeElement.id") == "query"

    def chosen() -> str:
        active = query.get_attribute("aria-activedescendant")
        assert page.locator("#found [aria-selected=true]").get_attribute("id") == active
        return page.locator(f"#{active} .name").inner_text()

    assert chosen() == names[0][1]
    page.keyboard.press("ArrowUp")
    assert chosen() == names[-1][1]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert chosen() == names[1][1]
    page.keyboard.press("Escape")
    assert box.is_hidden() and query.get_attribute("aria-expanded") == "false"
    page.keyboard.press("ArrowDown")
    box.wait_for(state="visible")
    page.keyboard.press("Enter")
    page.wait_for_url("**/index.html")
    assert page.locator("h1").inner_text().startswith(names[0][1])


def test_what_a_publisher_wrote_stays_text(pages: Pages) -> None:
    """No dialog opens and no script is added: `pages` would have noticed."""
    page = pages.open()
    assert ("network", HOSTILE) in found(page, "onerror")
    assert page.locator("img, #found script").count() == 0
    page.keyboard.press("Enter")
    page.wait_for_url("**/network*/**")
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator("main script, img").count() == 0
    page.locator("main a", has_text="llvm-skylake").first.click()
    page.wait_for_url("**/*llvm-skylake/**")
    assert HOSTILE in page.locator("main").inner_text()
    assert page.locator("main script, img").count() == 0


def test_what_was_typed_before_the_scripts_came_is_answered(pages: Pages) -> None:
    page = pages.open()
    page.route("**/static/search.js", lambda route: (page.locator("#query").fill("toynet"), route.continue_()))
    page.goto(f"{pages.address}trust.html", wait_until="commit")
    page.locator("#found [role=option]").first.wait_for()
    assert page.locator("#found [role=option] .name").all_inner_texts() == ["toynet-3"]
