from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import tunehub
from tunehub import api
from tunehub.compiler.hub import Hub
from tunehub.exceptions import HubWarning, RequirementError, UnsupportedTVMError

from .conftest import RegistryFolder

pytestmark = pytest.mark.fast

pytest.importorskip("tvm")


class Pipeline:
    """Stands in for tunehub.compiler.pipeline: what the functions here hand to it is what counts."""

    def __init__(self) -> None:
        self.active: list[Hub] = []
        self.open_hub: Any = None

    @contextmanager
    def activate(self, hub: Hub) -> Iterator[None]:
        self.active.append(hub)
        yield
        self.active.pop()

    def compile_module(self, *arguments: Any) -> Any:
        return arguments

    def build_pipeline(self, *arguments: Any) -> Any:
        return arguments

    def install(self, open_hub: Any) -> None:
        self.open_hub = open_hub

    def uninstall(self) -> None:
        self.open_hub = None


@pytest.fixture
def relax(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    import tunehub.compiler.pipeline as module

    fake = Pipeline()
    for name in ("activate", "compile_module", "build_pipeline", "install", "uninstall"):
        monkeypatch.setattr(module, name, getattr(fake, name))
    return fake


@pytest.fixture
def published(registry: RegistryFolder) -> str:
    registry.publish(tunehub.target.host.host_descriptor())  # type: ignore[attr-defined]
    return str(registry.root)


def test_compile_opens_a_hub_for_this_machine(relax: Pipeline, published: str) -> None:
    mod, params = object(), {"w": 1}
    got = tunehub.compile(mod, params=params, registry=published)
    assert got[0] is mod
    assert str(got[1]) == str(tunehub.host_target())
    assert got[2].report().package is not None
    assert got[3] == params
    assert tunehub.compile(mod, specialize={"n": [1]}, registry=published)[4] == {"n": [1]}


def test_a_hub_can_be_given(relax: Pipeline, published: str) -> None:
    hub = tunehub.open_hub(registry=published)
    assert tunehub.compile(object(), hub=hub)[2] is hub
    assert tunehub.pipeline(hub=hub)[1] is hub
    assert tunehub.pipeline(registry=published)[1] is not hub
    with pytest.raises(TypeError, match="strict"):
        tunehub.compile(object(), hub=hub, strict=True)


def test_context_activates_its_hub(relax: Pipeline, published: str) -> None:
    with tunehub.context(registry=published) as hub:
        assert relax.active == [hub]
        assert hub.report().workloads == ()
    assert relax.active == []


def test_install_opens_one_hub_a_target(relax: Pipeline, published: str) -> None:
    assert tunehub.installed_hubs() == ()
    tunehub.install(registry=published)
    try:
        target = tunehub.host_target()
        hub = relax.open_hub(target)
        assert relax.open_hub(tunehub.host_target()) is hub
        assert tunehub.installed_hubs() == (hub,)
    finally:
        tunehub.uninstall()
    assert relax.open_hub is None
    tunehub.uninstall()


def test_install_checks_its_options_at_once(relax: Pipeline) -> None:
    with pytest.raises(RequirementError):
        tunehub.install(require="=x")
    assert relax.open_hub is None


def test_resolve_explains(published: str) -> None:
    found = tunehub.resolve(registry=published)
    assert found.chosen is not None
    assert "made for this model" in found.explain()
    with pytest.warns(HubWarning, match="nowhere"):
        tunehub.resolve(registry="/nowhere")


def test_without_tvm_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub.target.tvm_generation.find_tvm", lambda: None)
    for use in (lambda: tunehub.compile(object()), tunehub.install, tunehub.pipeline, tunehub.context().__enter__):
        with pytest.raises(UnsupportedTVMError, match="pip install"):
            use()
    assert api.installed_hubs() == ()
