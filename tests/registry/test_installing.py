"""What a remedy says of extras: a command that works as tunehub was installed."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest

from tunehub_registry import installing

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, "pip install 'tunehub[llm]'"),
        ('{"url": "https://example.org/tunehub.whl", "archive_info": {}}', "pip install 'tunehub[llm]'"),
        ('{"url": "file:///a%20b/tunehub", "dir_info": {}}', "pip install '/a b/tunehub[llm]'"),
        ('{"url": "file:///a", "dir_info": {"editable": true}}', "pip install -e '/a[llm]'"),
    ],
)
def test_extras_come_from_where_tunehub_came_from(
    monkeypatch: pytest.MonkeyPatch, stated: str | None, expected: str
) -> None:
    installing._source.cache_clear()
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: stated))
    assert installing.pip_install("llm") == expected
    installing._source.cache_clear()
