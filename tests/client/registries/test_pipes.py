"""Pipes where files of the cache should be: nobody who opens them waits for a writer."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from tunehub._files.atomic import NotRegularError, open_regular
from tunehub.compiler.hub import Hub, open_hub
from tunehub.registries.trust_store import TrustStore

from ..conftest import ZNVER5, key, lines, make_record
from ..signing import FolderPlace, SigningRegistry

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]


@pytest.fixture
def signed(tmp_path: Path) -> SigningRegistry:
    found = SigningRegistry(FolderPlace(tmp_path / "signed"))
    found.publish(data=lines(make_record(1)))
    TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(str(tmp_path / "signed"), found.root)
    return found


def opened(signed: SigningRegistry) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_hub(ZNVER5, registry=str(signed.place.address), tvm_version="0.27.0")  # type: ignore[attr-defined]


def test_a_pipe_instead_of_any_file_of_the_cache_is_replaced_or_passed_over(
    signed: SigningRegistry, cache: Path
) -> None:
    opened(signed).close()
    files = sorted(path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert len(files) > 8
    for path in [*files, None]:
        for each in files if path is None else [path]:
            each.unlink(missing_ok=True)
            each.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(each)
        hub = opened(signed)
        assert hub.lookup.by_exact(key(1)) is not None, path
        hub.close()


def test_what_a_download_that_broke_off_left_may_be_a_pipe(signed: SigningRegistry, cache: Path) -> None:
    (entry,) = signed.shards["llvm-znver5"].versions
    (cache / "blobs").mkdir(parents=True)
    os.mkfifo(cache / "blobs" / f"{entry.sha256}.tunepkg.part")
    assert opened(signed).lookup.by_exact(key(1)) is not None


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(NotRegularError, match="no regular file"):
            open_regular(path)
    with open_regular(tmp_path / "file") as stream:
        assert stream.read() == b"x"
