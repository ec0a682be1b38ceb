from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunehub_registry import exceptions
from tunehub_registry.manifest import Manifest, encode_manifest
from tunehub_registry.package import PackageLimits, open_package, pack, package_filename, sha256_of

pytestmark = pytest.mark.fast

RECORDS = "records/meta_schedule.jsonl"
FILES = {RECORDS: b'{"exact": "x"}\n', "evidence.jsonl": b"{}\n" * 100}


def hostile(manifest: Manifest, *members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    """A package with whatever members one likes after the good ones."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", encode_manifest(manifest))
        archive.writestr(RECORDS, b"")
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def test_round_trip_from_bytes_and_path(manifest: Manifest, tmp_path: Path) -> None:
    data = pack(manifest, FILES)
    path = tmp_path / package_filename(manifest.name, manifest.version)
    assert path.name == "llvm-znver5-1.2.0.tunepkg"
    path.write_bytes(data)
    for source in (data, path, str(path)):
        with open_package(source) as package:
            assert package.manifest == manifest
            assert package.names == ("manifest.json", "evidence.jsonl", RECORDS)
            assert package.read(RECORDS) == FILES[RECORDS]
            with package.open("evidence.jsonl") as stream:
                assert stream.readline() == b"{}\n"
    assert len(sha256_of(path)) == 64


def test_pack_is_deterministic_whatever_the_order(manifest: Manifest) -> None:
    data = pack(manifest, FILES)
    assert pack(manifest, dict(reversed(FILES.items()))) == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a\\b", "manifest.json", "", ".hidden", "C:x", "a/./b"])
def test_pack_refuses_unsafe_names(manifest: Manifest, name: str) -> None:
    with pytest.raises(exceptions.PackageError, match="rename"):
        pack(manifest, {**FILES, name: b""})


def test_pack_refuses_a_missing_record_file(manifest: Manifest) -> None:
    with pytest.raises(exceptions.PackageError, match="add the file"):
        pack(manifest, {})


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/passwd", "..\\evil", "a/../../b", "C:/x", "folder/", "nul\x00.txt"]
)
def test_zip_slip(manifest: Manifest, name: str) -> None:
    info = zipfile.ZipInfo("placeholder")
    info.filename = name
    with pytest.raises(exceptions.PackageError):
        open_package(hostile(manifest, (info, b"x")))


def test_symlinks_are_refused(manifest: Manifest) -> None:
    link = zipfile.ZipInfo("link")
    link.create_system = 3
    link.external_attr = 0o120777 << 16
    with pytest.raises(exceptions.PackageError, match="not a regular file"):
        open_package(hostile(manifest, (link, b"/etc/passwd")))


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile warns while this test writes the hostile file
@pytest.mark.parametrize("name", [RECORDS, "manifest.json", "Manifest.JSON"])
def test_duplicates_are_refused(manifest: Manifest, name: str) -> None:
    with pytest.raises(exceptions.PackageError, match="two members"):
        open_package(hostile(manifest, (name, b"other")))


def test_encrypted_members_are_refused(manifest: Manifest) -> None:
    data = bytearray(hostile(manifest))
    entry = data.find(b"PK\x01\x02")
    data[entry + 8] |= 1
    with pytest.raises(exceptions.PackageError, match="encrypted"):
        open_package(bytes(data))


def test_other_compression_methods_are_refused(manifest: Manifest) -> None:
    info = zipfile.ZipInfo("x")
    info.compress_type = zipfile.ZIP_LZMA
    with pytest.raises(exceptions.PackageError, match="compression method 14"):
        open_package(hostile(manifest, (info, b"x")))


def test_too_many_members(manifest: Manifest) -> None:
    data = hostile(manifest, *((f"f{i}", b"") for i in range(9)))
    with pytest.raises(exceptions.PackageError, match="11 members, the limit is 10"):
        open_package(data, limits=PackageLimits(max_members=10))
    assert len(open_package(data).names) == 11


def test_declared_sizes_over_the_limits(manifest: Manifest) -> None:
    data = hostile(manifest, ("a", b"x" * 5000), ("b", b"x" * 5000))
    with pytest.raises(exceptions.PackageError, match="limit is 4000"):
        open_package(data, limits=PackageLimits(max_member=4000))
    with pytest.raises(exceptions.PackageError, match="limit is 9000"):
        open_package(data, limits=PackageLimits(max_total=9000))
    with pytest.raises(exceptions.PackageError, match="limit is 100"):
        open_package(data, limits=PackageLimits(max_package=100))


def test_a_ratio_bomb_stops_while_streaming(manifest: Manifest) -> None:
    package = open_package(hostile(manifest, ("bomb", b"\0" * (20 << 20))))
    with pytest.raises(exceptions.PackageError, match="unpacks to more than") as caught:
        package.read("bomb")
    assert caught.value.member == "bomb"


def test_a_lie_about_the_size_does_not_unpack_more(manifest: Manifest) -> None:
    data = bytearray(hostile(manifest, ("bomb", b"\0" * (20 << 20))))
    entry = data.rfind(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 10)
    package = open_package(bytes(data))
    with pytest.raises(exceptions.PackageError, match="CRC"):
        package.read("bomb")


def test_missing_manifest_and_missing_record_file(manifest: Manifest) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", b"")
    with pytest.raises(exceptions.PackageError, match="manifest is missing"):
        open_package(buffer.getvalue())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("manifest.json", encode_manifest(manifest))
    with pytest.raises(exceptions.PackageError, match="file is missing"):
        open_package(buffer.getvalue())


def test_a_damaged_manifest_names_the_package(manifest: Manifest) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", b"{}")
    with pytest.raises(exceptions.FormatError, match=r"p\.tunepkg!manifest\.json"):
        open_package(buffer.getvalue(), source="p.tunepkg")


def test_unknown_member_and_missing_file(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(exceptions.PackageError, match="no such file"):
        open_package(pack(manifest, FILES)).read("x")
    with pytest.raises(FileNotFoundError):
        open_package(tmp_path / "none.tunepkg")


def test_a_bad_file_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "bad.tunepkg"
    path.write_bytes(b"PK")
    with pytest.raises(exceptions.PackageError, match=r"bad\.tunepkg"):
        open_package(path)  # an open file would fail the test as a ResourceWarning


def read_all(data: bytes) -> None:
    with open_package(data) as package:
        for name in package.names:
            package.read(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_damage_raises_nothing_but_our_errors(manifest: Manifest, data: st.DataObject) -> None:
    damaged = bytearray(pack(manifest, FILES))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(damaged)))
    try:
        read_all(bytes(damaged[:cut]))
    except exceptions.RegistryError as error:
        assert "<memory>" in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_truncation_is_always_noticed(manifest: Manifest, data: st.DataObject) -> None:
    whole = pack(manifest, FILES)
    with pytest.raises(exceptions.PackageError):
        read_all(whole[: data.draw(st.integers(0, len(whole) - 1))])
