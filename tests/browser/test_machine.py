"""The front page asks for the machine, and answers."""

from __future__ import annotations

import pytest

from .conftest import PHONE, Pages

pytestmark = pytest.mark.browser

OPEN = "[...document.querySelectorAll('details.machine[open] .name')].map((each) => each.textContent)"


def test_what_doctor_prints_opens_what_there_is_for_the_machine(pages: Pages) -> None:
    page = pages.open()
    box = page.locator("#machine-paste textarea")
    box.fill("ok  cpu: llvm-znver5 (x86_64, 2 physical cores)\nok  embedded registry: cuda-h200, llvm-znver4")
    assert page.evaluate(OPEN) == ["llvm-znver5"]
    assert page.locator("#machine-paste [role=status]").inner_text() == "Here: llvm-znver5"
    answer = page.locator("details.machine[open]")
    assert "tunehub bench model.onnx" in answer.inner_text() and answer.locator("tbody tr").count() >= 10
    box.fill("ok  cpu: llvm-znver9 (x86_64)")
    assert page.evaluate(OPEN) == []
    assert "the nearest one serves" in page.locator("#machine-paste [role=status]").inner_text()


def test_a_phone_shows_machines_and_pictures_without_scrolling_sideways(pages: Pages) -> None:
    page = pages.open(viewport=PHONE)
    page.locator("details.machine", has_text="llvm-znver5").locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.go(page, "package/llvm-znver5/index.html")
    inside = "(each) => each.getBoundingClientRect().right <= innerWidth"
    assert page.evaluate(f"[...document.querySelectorAll('svg.chart')].every({inside})")
