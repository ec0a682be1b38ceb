"""A real catalogue, from a signed registry, a hostile one and the embedded one, in the system's Chromium."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from .site_of_registries import write_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
Opener = Callable[..., "Page"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue's folder, which one of pytest's processes writes for all."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "catalogue"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            folder.mkdir()
            return write_site(folder)
    return folder / "site"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window, with a new profile."""
    from playwright.sync_api import sync_playwright

    binary = os.environ.get("TUNEHUB_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        pytest.fail("there is no Chromium: apt-get install chromium, or TUNEHUB_BROWSER=/path/to/chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=FLAGS)
        yield browser
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # of 5 connections on a busy machine some are dropped, and wait for seconds


def serve(folder: Path) -> Iterator[str]:
    """The address of a web server that has nothing but the folder's files."""
    with _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def web_address(site: Path) -> Iterator[str]:
    """The site on a web server."""
    yield from serve(site)


@dataclass(kw_only=True)
class Pages:
    """Opens pages; `problems` are what they wrote to the console, threw, or could not load."""

    browser: Browser
    address: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str = "index.html", *, viewport: dict[str, int] | None = None, **options: Any) -> Page:
        """A page in a context of its own. `options` are those of Playwright's `new_context`."""
        page = self.browser.new_context(viewport=viewport or DESKTOP, **options).new_page()
        page.set_default_timeout(180_000)  # also on a busy machine
        page.on("console", lambda message: self.problems.append(f"{page.url}: {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"{page.url}: {error}"))
        page.on("requestfailed", lambda request: self._failed(page, request))
        page.on("dialog", lambda dialog: self.problems.append(f"{page.url}: a dialog: {dialog.message}"))
        self.go(page, path)
        return page

    def _failed(self, page: Page, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # that page was left
            self.problems.append(f"{page.url}: {request.url}: {request.failure}")

    def go(self, page: Page, path: str) -> None:
        """Lead a page to another path of the site."""
        page.goto(self.address + path)


def watched(browser: Browser, address: str) -> Iterator[Pages]:
    """The site at an address. At the end nothing may have gone wrong in the browser."""
    pages = Pages(browser=browser, address=address)
    yield pages
    for context in browser.contexts:
        context.close()
    assert pages.problems == []


@pytest.fixture
def pages(browser: Browser, site: Path) -> Iterator[Pages]:
    """The site as files, without a server."""
    yield from watched(browser, f"{site.as_uri()}/")


@pytest.fixture
def served(request: pytest.FixtureRequest, browser: Browser, site: Path) -> Iterator[Pages]:
    """The site as `file`s, or by `http` from a web server."""
    address = f"{site.as_uri()}/" if request.param == "file" else request.getfixturevalue("web_address")
    yield from watched(browser, address)


FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the end of the report: what was measured, and is not asserted."""
    return request.config.stash.setdefault(FIGURES, [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["figures"] = session.config.stash.get(FIGURES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a process of pytest-xdist found."""
    node.config.stash.setdefault(FIGURES, []).extend(getattr(node, "workeroutput", {}).get("figures", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(FIGURES, []):
        terminalreporter.section("the catalogue in a browser")
        for line in lines:
            terminalreporter.line(line)
