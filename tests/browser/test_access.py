"""Who reads the catalogue: contrast in light and dark (WCAG 2.2, AA), the keyboard, no scripts."""

from __future__ import annotations

import pytest

from .conftest import DESKTOP, PHONE, Pages

pytestmark = pytest.mark.browser

PAGES = (
    "index.html", "list/networks.html", "list/packages.html", "trust.html", "package/llvm-znver5/index.html",
    "package/llvm-skylake/index.html", "network/resnet50/index.html", "target/llvm-znver5/index.html",
)  # fmt: skip

# Texts and bars that stand out too little: 4.5:1 for text, 3:1 for large text and bars.
FAINT = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(getComputedStyle(each).backgroundColor);
    return layers.reverse().map(parse).reduce((under, top) => over(top, under), [0, 0, 0, 1]);
  };
  const ratio = (colour, element) => {
    const under = ground(element);
    const [a, b] = [light(over(colour, under)), light(under)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const faint = [];
  let least = 99;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.closest(".unseen, .skip, option")) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const colour = parse(element.closest("svg") ? style.fill : style.color);
    const found = ratio(colour, element);
    least = Math.min(least, found);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 600) ? 3 : 4.5;
    if (found < needed) faint.push([text.slice(0, 40), found]);
  }
  for (const bar of document.querySelectorAll("svg.chart path[style*='--chart-']:not([style*='--chart-grid'])")) {
    const { fill, stroke } = getComputedStyle(bar);
    const found = ratio(parse(fill === "none" ? stroke : fill), bar);
    if (found < 3) faint.push([bar.getAttribute("style"), found]);
  }
  return { faint, least };
}"""

# The element that has the focus: a number of its own, how it is outlined, and whether it can be seen.
FOCUSED = """() => {
  const element = document.activeElement;
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  window.seen ??= [];
  if (!window.seen.includes(element)) window.seen.push(element);
  return {
    number: window.seen.indexOf(element), tag: element.tagName, text: element.textContent.trim().slice(0, 40),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    visible: box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(pages: Pages, scheme: str, figures: list[str]) -> None:
    page = pages.open(color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 20, 25)")
    least = {}
    for path in PAGES:
        pages.go(page, path)
        if path == "index.html":  # the search's answers, too
            page.locator("#query").fill("z")
            page.locator("#found [role=option]").first.wait_for()
        contrast = page.evaluate(FAINT)
        assert contrast["faint"] == [], path
        least[path] = contrast["least"]
    figures.append(f"least contrast of text, {scheme}: {min(least.values()):.2f}")


@pytest.mark.parametrize(
    ("path", "viewport"), [("package/llvm-znver5/index.html", DESKTOP), ("index.html", PHONE)], ids=["desktop", "phone"]
)
def test_everything_is_reached_by_keyboard_and_the_focus_is_seen(
    pages: Pages, path: str, viewport: dict[str, int]
) -> None:
    page = pages.open(path, viewport=viewport)
    every = page.locator("a:visible, button:visible, input:visible, select:visible, summary:visible").count()
    reached = set()
    for _ in range(every + 40):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUSED)
        if focus["tag"] == "BODY":
            break
        assert focus["visible"] and focus["outline"] >= 2, focus
        reached.add(focus["number"])
    assert focus["tag"] == "BODY" and len(reached) >= every


def test_the_first_stop_of_the_keyboard_leads_to_the_content(pages: Pages) -> None:
    page = pages.open()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#main:focus").wait_for()


def test_pages_say_the_same_without_scripts(pages: Pages) -> None:
    page = pages.open(java_script_enabled=False)
    assert page.locator("table.heat td a").count() > 20
    assert page.locator("#search").is_hidden() and page.locator("#heat-filters").is_hidden()
    page.locator("table.heat a", has_text="toynet-3").click()
    page.wait_for_url("**/network/**")
    assert page.locator("h1").inner_text() == "toynet-3"
    page.locator("main a", has_text="cuda-toy9000").first.click()
    page.wait_for_url("**/package/**")
    main = page.locator("main").inner_text()
    assert "tunehub lock 'cuda-toy9000==2.0.0'" in main and "signed by the publisher" in main and "40×" in main
    assert page.locator("svg.chart").count() == 2 and page.locator("button").count() == 0
    page.locator("header a", has_text="Packages").click()
    page.wait_for_url("**/list/packages.html")
    assert page.locator("tbody tr").count() >= 6
