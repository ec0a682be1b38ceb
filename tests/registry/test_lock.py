from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tunehub_registry import exceptions
from tunehub_registry.document import describe_document
from tunehub_registry.index import RecordSetSummary
from tunehub_registry.lock import (
    LOCK_FILE,
    MAX_LOCK_BYTES,
    Lock,
    LockedPackage,
    compare_locks,
    encode_lock,
    parse_lock,
)
from tunehub_registry.locked_kernel import LockedKernel, LockedModel
from tunehub_registry.target import TargetDescriptor

pytestmark = pytest.mark.fast

ZNVER5 = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64", features=("avx2", "avx512f"), num_cores=2)
H200 = TargetDescriptor(kind="cuda", model="h200", arch="sm_90", features=("sm_90",), aliases=("NVIDIA H200",))


def pin(version: str = "0.2.0", target: TargetDescriptor = ZNVER5, **changes: Any) -> LockedPackage:
    fields: dict[str, Any] = {
        "name": target.name,
        "version": version,
        "registry": "s3://bucket/prefix?endpoint=http://127.0.0.1:8333",
        "url": "https://example.com/packages/x.tunepkg",
        "size": 1234,
        "sha256": "ab" * 32,
        "published": "2026-01-31T12:00:00Z",
        "requires": ">=0.1,<2",
        "target": target,
        "record_sets": (
            RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28"),
            RecordSetSummary(tuner="autotvm", tvm=">=0.8,<0.20"),
        ),
        **changes,
    }
    return LockedPackage(**fields)


def make_lock(*packages: LockedPackage, **changes: Any) -> Lock:
    return Lock(created_by="tunehub 0.1.0", packages=packages or (pin(),), **changes)


# --- what is written


def test_round_trip_is_canonical_and_sorted() -> None:
    lock = make_lock(pin("0.10.0"), pin("0.2.0"), pin(target=H200), tvm=("0.27.0.post1",))
    data = encode_lock(lock)
    read = parse_lock(data, LOCK_FILE)
    assert [item.label for item in read.packages] == ["cuda-h200 0.2.0", "llvm-znver5 0.2.0", "llvm-znver5 0.10.0"]
    assert set(read.packages) == set(lock.packages)
    assert encode_lock(read) == data
    assert encode_lock(make_lock(*reversed(lock.packages), tvm=lock.tvm)) == data


def test_it_looks_like_a_lock_file_of_pep_751() -> None:
    expires = datetime(2026, 2, 1, tzinfo=timezone.utc)
    text = encode_lock(make_lock(pin(url_expires=expires), tvm=("0.27.0",))).decode()
    assert text.startswith("# Written by `tunehub lock`")
    for line in ('lock-version = "1.0"', 'created-by = "tunehub 0.1.0"', "[[packages]]", 'name = "llvm-znver5"',
                 "size = 1234", f'sha256 = "{"ab" * 32}"', 'requires = ">=0.1,<2"', "[packages.target]",
                 "url-expires = 2026-02-01 00:00:00+00:00"):  # fmt: skip
        assert line in text.splitlines()
    assert "[[packages.record-sets]]" in text or "record-sets = [" in text
    assert parse_lock(text.encode(), "x").packages[0].url_expires == expires


def test_what_is_not_known_is_left_out() -> None:
    text = encode_lock(make_lock(pin(url=None, requires=None))).decode()
    assert "url" not in text
    assert "requires" not in text
    assert parse_lock(text.encode(), "x").packages[0].url is None


def test_an_empty_lock_is_a_lock() -> None:
    lock = Lock(created_by="x")
    assert parse_lock(encode_lock(lock), "x") == lock


# --- what is refused

_BAD = [
    ({"name": "../x"}, "$.packages[0].name"),
    ({"name": "llvm-other"}, "$.packages[0].target"),
    ({"version": "../../x"}, "$.packages[0].version"),
    ({"version": "1.0-beta"}, "$.packages[0].version"),
    ({"sha256": "../" + "a" * 61}, "$.packages[0].sha256"),
    ({"sha256": "A" * 64}, "$.packages[0].sha256"),
    ({"sha256": "a" * 64 + "\n"}, "$.packages[0].sha256"),
    ({"size": 0}, "$.packages[0].size"),
    ({"size": 1 << 40}, "$.packages[0].size"),
    ({"size": "12"}, "$.packages[0].size"),
    ({"url": "javascript:x"}, "$.packages[0].url"),
    ({"url": "https://user:secret@example.com/x"}, "$.packages[0].url"),
    ({"url": "https://example.com/a b"}, "$.packages[0].url"),
    ({"url": "https://example.com/\x1b[2J"}, "$.packages[0].url"),
    ({"registry": "https://user:secret@example.com"}, "$.packages[0].registry"),
    ({"registry": "s3://b?endpoint=http://a:b@h"}, "$.packages[0].registry"),
    ({"registry": "x\ny"}, "$.packages[0].registry"),
    ({"registry": ""}, "$.packages[0].registry"),
    ({"requires": "0.1"}, "$.packages[0].requires"),
    ({"published": "yesterday"}, "$.packages[0].published"),
    ({"url-expires": "2026-02-01"}, "$.packages[0].url-expires"),
    ({"record-sets": [{"tuner": "x", "tvm": "0.27"}]}, "$.packages[0].record-sets[0].tvm"),
    ({"target": {"kind": "llvm", "model": "../x", "arch": "x"}}, "$.packages[0].target.model"),
]


def changed(**changes: Any) -> bytes:
    import tomli_w

    document = msgspec.to_builtins(make_lock())
    document["packages"][0].update(changes)
    return tomli_w.dumps(document).encode()


@pytest.mark.parametrize(("changes", "where"), _BAD)
def test_errors_carry_the_place_the_file_and_a_remedy(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(exceptions.FormatError) as caught:
        parse_lock(changed(**changes), "my.lock")
    assert (caught.value.path, caught.value.source) == (where, "my.lock")
    assert "tunehub lock" in caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "lock-version"),
        (b"lock-version = '1.0'", "created-by"),
        (b"lock-version = '1'\ncreated-by = 'x'", "expected a version"),
        (b"lock-version = '1.0'\nlock-version = '1.0'\n", "Cannot overwrite.*line 2|end of document"),
        (b"a = 1\nb = [1\nc", "line 3"),
        (b"\xff", "UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"#" * (MAX_LOCK_BYTES + 1), "limit"),
        (b"lock-version = '1.0'\ncreated-by = 'x'\npackages = {}", "packages"),
    ],
)
def test_what_is_no_lock_file(data: bytes, reason: str) -> None:
    with pytest.raises(exceptions.FormatError, match=reason):
        parse_lock(data, "my.lock")


def test_versions_of_the_format() -> None:
    data = encode_lock(make_lock())
    with pytest.warns(exceptions.NewerFormatWarning, match="1.7"):
        newer = parse_lock(data.replace(b'lock-version = "1.0"', b'lock-version = "1.7"\nnew = 1'), "my.lock")
    assert newer.packages == make_lock().packages
    with pytest.raises(exceptions.UnsupportedFormatError, match="upgrade tunehub"):
        parse_lock(data.replace(b'lock-version = "1.0"', b'lock-version = "2.0"'), "my.lock")


def test_documents_are_pinned() -> None:
    document = describe_document("compat", b"{}")
    data = encode_lock(make_lock(pin(documents=(document,))))
    assert b'lock-version = "1.1"' in data
    lock = parse_lock(data, "my.lock")
    assert lock.shard("llvm-znver5").versions[0].document("compat") == document
    assert encode_lock(lock) == data
    with pytest.raises(exceptions.FormatError) as caught:
        parse_lock(data.replace(b"packages/documents/", b"packages/../"), "my.lock")
    assert caught.value.path == "$.packages[0].documents[0].file"


KERNEL = LockedKernel(
    key="a" * 32, op="conv", rung="template", text="b" * 16, template="conv2d", knobs={"columns": 6, "order": "rows"}
)
MODEL = LockedModel(name="net", target="llvm-znver5", tvm="0.27.0", created_by="tunehub 1", kernels=(KERNEL,))


def test_choices_of_models_are_kept() -> None:
    lock = make_lock(models=(MODEL,))
    data = encode_lock(lock)
    assert b'lock-version = "1.2"' in data
    assert parse_lock(data, "my.lock").models == (MODEL,) and encode_lock(parse_lock(data, "my.lock")) == data


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        (b'key = "aaaa', b'key = "../a', "$.models[0].kernels[0].key"),
        (b"columns = 6", b"columns = { a = 1 }", "$.models[0].kernels[0].knobs[...]"),
        (b'template = "conv2d"', b'template = "os.system"', "$.models[0].kernels[0].template"),
        (b'tvm = "0.27.0"', b'tvm = "new"', "$.models[0].tvm"),
    ],
)
def test_choices_that_are_none_are_refused_with_their_place(before: bytes, after: bytes, place: str) -> None:
    data = encode_lock(make_lock(models=(MODEL,)))
    assert before in data
    with pytest.raises(exceptions.FormatError) as caught:
        parse_lock(data.replace(before, after), "my.lock")
    assert caught.value.path == place and "tunehub lock" in (caught.value.remedy or "")


def test_a_model_is_locked_once_a_target_and_a_workload_once_a_model() -> None:
    with pytest.raises(exceptions.FieldError, match="net for llvm-znver5 stands twice"):
        make_lock(models=(MODEL, MODEL))
    with pytest.raises(exceptions.FieldError, match="aaaa stands twice"):
        msgspec.structs.replace(MODEL, kernels=(KERNEL, KERNEL))


def test_one_pin_a_version_and_one_target_a_name() -> None:
    with pytest.raises(exceptions.FieldError, match="pinned twice"):
        make_lock(pin(), pin())
    other = msgspec.structs.replace(ZNVER5, num_cores=8)
    with pytest.raises(exceptions.FieldError, match="target"):
        make_lock(pin("0.1.0"), pin("0.2.0", other))


def test_a_pin_outside_of_what_it_requires_is_refused() -> None:
    data = encode_lock(make_lock(pin("0.3.0", requires="==0.3.0"))).replace(b"==0.3.0", b"==0.4.0")
    with pytest.raises(exceptions.FormatError, match=r"'==0\.4\.0' does not allow 0\.3\.0, which is pinned") as caught:
        parse_lock(data, "my.lock")
    assert caught.value.path == "$.packages[0].requires"
    assert encode_lock(make_lock(pin("0.3.0rc1", requires=">=0.1")))


# --- what a resolver sees


def test_pins_are_a_shard() -> None:
    lock = make_lock(pin("0.10.0"), pin("0.2.0"), pin(target=H200))
    shard = lock.shard("llvm-znver5")
    assert [item.version for item in shard.versions] == ["0.2.0", "0.10.0"]
    assert lock.names == {"llvm-znver5": ZNVER5, "cuda-h200": H200}
    assert shard.versions[0].file == f"packages/{'ab' * 32}/llvm-znver5-0.2.0.tunepkg"
    assert lock.pins("llvm-skylake") == ()


def test_changes() -> None:
    before = make_lock(pin("0.1.0"), pin("1.0.0", H200))
    after = make_lock(pin("0.2.0"), pin("1.0.0", H200, url=None))
    assert [str(item) for item in compare_locks(None, before)] == ["added cuda-h200 1.0.0", "added llvm-znver5 0.1.0"]
    assert [str(item) for item in compare_locks(before, after)] == [
        "changed cuda-h200 1.0.0 in other fields",
        "upgraded llvm-znver5 0.1.0 -> 0.2.0",
    ]
    assert [item.kind for item in compare_locks(after, before)] == ["changed", "downgraded"]
    assert [str(item) for item in compare_locks(after, after)] == ["kept cuda-h200 1.0.0", "kept llvm-znver5 0.2.0"]
    assert [item.kind for item in compare_locks(before, Lock(created_by="x"))] == ["removed", "removed"]


# --- properties

versions = st.tuples(st.integers(0, 99), st.integers(0, 99), st.sampled_from(["", "rc1", ".post2", ".dev3"])).map(
    lambda part: str(Version(f"{part[0]}.{part[1]}{part[2]}"))
)
addresses = st.text(st.characters(exclude_categories=("C", "Zl", "Zp", "Zs"), exclude_characters="@"), min_size=1)
pins = st.builds(
    pin,
    version=versions,
    target=st.sampled_from([ZNVER5, H200]),
    registry=addresses.map(lambda text: text[:1024]),
    url=st.none() | st.text("abc/%?&=.~+", min_size=1).map(lambda text: f"https://{text}"),
    url_expires=st.none() | st.datetimes(timezones=st.just(timezone(timedelta(hours=2)))),
    size=st.integers(1, 1 << 30),
    requires=st.none() | st.just(">=0"),
)


@given(st.lists(pins, max_size=5, unique_by=lambda item: (item.name, item.version)))
def test_whatever_can_be_made_can_be_read_again(packages: list[LockedPackage]) -> None:
    lock = make_lock(*packages) if packages else Lock(created_by="x")
    data = encode_lock(lock)
    assert set(parse_lock(data, "x").packages) == set(lock.packages)
    assert encode_lock(parse_lock(data, "x")) == data


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(exceptions.FormatError):
        parse_lock(data, "x")


@given(st.data())
def test_damage_is_read_or_refused_and_never_leads_elsewhere(data: st.DataObject) -> None:
    good = bytearray(encode_lock(make_lock(tvm=("0.27.0",))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(exceptions.FormatError):
        for item in parse_lock(bytes(good), "x").packages:
            assert all(".." not in path and not path.startswith("/") for path in item.paths)
            assert len(item.sha256) == 64
            item.entry()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
).filter(lambda value: value is not None)


@given(st.sampled_from([*msgspec.to_builtins(pin()), "new-field"]), values)
def test_any_value_in_any_field_is_read_or_refused(field: str, value: Any) -> None:
    try:
        data = changed(**{field: value})
    except (TypeError, ValueError, UnicodeEncodeError):
        return  # TOML has no such value
    with contextlib.suppress(exceptions.FormatError):
        parse_lock(data, "x")
