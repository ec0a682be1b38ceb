"""Trees, tiles and heads of logs: against RFC 6962 as it is written, and against others' examples."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner, SSlibKey

from tunehub_registry.trust.checkpoint import (
    Checkpoint,
    NoteSignature,
    cosign,
    cosigned_at,
    is_signed_by,
    note_key_id,
    parse_checkpoint,
    sign_checkpoint,
)
from tunehub_registry.trust.exceptions import KeyUnusableError
from tunehub_registry.trust.merkle import (
    EMPTY_ROOT,
    Frontier,
    Hashes,
    TilePlace,
    entries_path,
    extend,
    leaf_hash,
    new_tiles,
    pack_entries,
    read_tile_bytes,
    rightmost_tiles,
    tree_of,
    unpack_entries,
)

pytestmark = pytest.mark.fast

# The inputs and roots that the tests of Certificate Transparency have.
INPUTS = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
MOST = 70_000
LEAVES = [hashlib.sha256(str(number).encode()).digest() for number in range(MOST)]
ROWS: list[list[bytes]] = [LEAVES]  # of tiles: the hashes of all full tiles of a level are the row above
while len(ROWS[-1]) >= 256:
    ROWS.append([tree_of(ROWS[-1][start : start + 256]) for start in range(0, len(ROWS[-1]) // 256 * 256, 256)])


def rfc_root(leaves: list[bytes]) -> bytes:
    """MTH as section 2.1 of RFC 6962 defines it, over hashes of leaves."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + rfc_root(leaves[:k]) + rfc_root(leaves[k:])).digest()


class Tiles:
    """The tiles of a tree of `size` leaves; `read` are those that were asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[TilePlace] = []

    def __call__(self, place: TilePlace) -> Hashes:
        self.read.append(place)
        start = place.index * 256
        assert start + place.width <= self.size >> 8 * place.level, "the tree has no such tile"
        assert place.width == 256 or place in rightmost_tiles(self.size), "nobody wrote this tile"
        return tuple(ROWS[place.level][start : start + place.width])


def frontier(size: int) -> Frontier:
    return extend(Frontier(), size, Tiles(size))


def test_roots_are_those_of_certificate_transparency() -> None:
    tree = Frontier()
    assert tree.root == EMPTY_ROOT == rfc_root([])
    for entry, root in zip(INPUTS, ROOTS, strict=True):
        tree = tree.append(leaf_hash(entry))
        assert tree.root.hex() == root


@given(st.integers(0, 1500))
def test_a_tree_by_tiles_is_the_tree_of_the_rfc(size: int) -> None:
    assert frontier(size).root == rfc_root(LEAVES[:size])


@given(st.integers(0, MOST - 1), st.integers(0, MOST - 1))
def test_a_tree_that_begins_with_another_follows_from_it(one: int, other: int) -> None:
    before, size = min(one, other), max(one, other)
    tiles = Tiles(size)
    grown = extend(frontier(before), size, tiles)
    assert grown == frontier(size)
    assert grown.append(LEAVES[size]) == frontier(size + 1)
    if size - before < 256 and before // 256 == size // 256:
        assert len(tiles.read) <= max(1, (size - before).bit_length() * 2)
        assert len({place.path for place in tiles.read}) <= 1, "one file is enough for what came in one tile"
    with pytest.raises(ValueError, match="does not begin"):
        extend(frontier(size + 1), size, tiles)


@given(st.integers(1, MOST - 1), st.integers(0, MOST - 1), st.data())
def test_no_tree_with_another_beginning_has_the_root(size: int, before: int, data: st.DataObject) -> None:
    before = min(before, size)
    tree = frontier(before)
    if not tree.nodes:
        return
    wrong = data.draw(st.integers(0, len(tree.nodes) - 1))
    nodes = [hashlib.sha256(node).digest() if i == wrong else node for i, node in enumerate(tree.nodes)]
    forged = Frontier(size=before, nodes=tuple(nodes))
    assert extend(forged, size, Tiles(size)).root != frontier(size).root


@given(st.integers(1, MOST))
def test_new_tiles_are_those_that_the_tree_before_has_not(size: int) -> None:
    def all_tiles(size: int) -> set[TilePlace]:
        full = {TilePlace(level=level, index=(size >> 8 * (level + 1)) - 1, width=256) for level in range(3)}
        return {place for place in full if place.index >= 0} | set(rightmost_tiles(size))

    assert set(new_tiles(size)) == all_tiles(size) - all_tiles(size - 1)


def test_paths_are_those_of_tlog_tiles() -> None:
    assert TilePlace(level=0, index=1234067, width=256).path == "tile/0/x001/x234/067"
    assert TilePlace(level=1, index=0, width=17).path == "tile/1/000.p/17"
    assert TilePlace(level=2, index=1000, width=1).path == "tile/2/x001/000.p/1"
    assert entries_path(5, 256) == "tile/entries/005"
    partial = [(place.level, place.index, place.width) for place in rightmost_tiles(70_000)]
    assert partial == [(0, 273, 112), (1, 1, 17), (2, 0, 1)]
    assert [(p.level, p.index, p.width) for p in rightmost_tiles(256)] == [(1, 0, 1)]


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_entries_come_out_as_they_went_in(entries: list[bytes]) -> None:
    data = pack_entries(entries)
    assert unpack_entries(data, len(entries)) == tuple(entries)
    with pytest.raises(ValueError, match="bundle"):
        unpack_entries(data + b"\x00", len(entries))
    with pytest.raises(ValueError, match="has"):
        unpack_entries(data, len(entries) + 1)


def test_a_tile_of_another_size_is_none() -> None:
    with pytest.raises(ValueError, match="a tile of 3 hashes has 64 bytes"):
        read_tile_bytes(bytes(64), TilePlace(level=0, index=0, width=3))
    with pytest.raises(ValueError, match="does not have 1 largest"):
        Frontier(size=3, nodes=(bytes(32),))
    with pytest.raises(ValueError, match="32 bytes"):
        Frontier(size=1, nodes=(bytes(31),))


HEAD = Checkpoint(origin="example.com/log", size=7, root=bytes(range(32)))


def test_a_signed_note_is_read_as_it_was_written() -> None:
    signer, other = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
    head = sign_checkpoint(HEAD, signer)
    found = parse_checkpoint(head.note)
    assert found == head
    assert is_signed_by(found, signer.public_key) and not is_signed_by(found, other.public_key)
    assert not is_signed_by(parse_checkpoint(head.note.replace("\n7\n", "\n8\n")), signer.public_key)
    assert head.note.split("\n")[:4] == ["example.com/log", "7", base64.b64encode(HEAD.root).decode(), ""]
    ecdsa = CryptoSigner.generate_ecdsa()
    assert is_signed_by(sign_checkpoint(HEAD, ecdsa), ecdsa.public_key)


def test_key_ids_are_those_of_the_signed_note_specification() -> None:
    """Its example: example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k."""
    public = base64.b64decode("AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")[1:]
    key = SSlibKey("x" * 64, "ed25519", "ed25519", {"public": public.hex()})
    assert note_key_id("example.com/foo", key).hex() == "530d903a"
    line = "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM="
    assert base64.b64decode(line)[:4].hex() == "530d903a"


def test_a_cosignature_says_who_saw_the_head_and_when() -> None:
    witness, other = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
    line = cosign(HEAD, witness, "witness.example", 1_800_000_000)
    head = parse_checkpoint(HEAD.with_signatures(line).note)
    assert cosigned_at(head, witness.public_key) == 1_800_000_000
    assert cosigned_at(head, other.public_key) is None
    later = NoteSignature(name=line.name, key_id=line.key_id, signature=(2**40).to_bytes(8, "big") + line.signature[8:])
    assert cosigned_at(HEAD.with_signatures(later), witness.public_key) is None
    moved = Checkpoint(origin=HEAD.origin, size=8, root=HEAD.root, signatures=(line,))
    assert cosigned_at(moved, witness.public_key) is None
    with pytest.raises(KeyUnusableError, match="ed25519, not ecdsa"):
        cosign(HEAD, CryptoSigner.generate_ecdsa(), "w", 1)


@pytest.mark.parametrize(
    "note",
    [None, 7, "", "\n\n", "x" * 20_000, "a\n1\nAA==\n\n", "a b\n1\n{root}\n\n{line}", "a\n01\n{root}\n\n{line}",
     "a\n-1\n{root}\n\n{line}", "a\n1\nAAAA\n\n{line}", "a\n1\n{root}\n\n", "a\n1\n{root}\n\n\u2014 a AAAA\n",
     "a\n1\n{root}\n\n\u2014 a+b {sig}\n", "a\n1\n{root}\nmore\n\n{line}",
     "a\n1\n{root}\n\n{line}" + "\u2014 a {sig}\n" * 64,
     "a\n1\n{root}\n\n\u2014 \x1b[31m {sig}\n", "a\n" + "9" * 20 + "\n{root}\n\n{line}"],
)  # fmt: skip
def test_what_is_no_note_is_refused(note: object) -> None:
    if isinstance(note, str):
        sig = base64.b64encode(bytes(68)).decode()
        values = {"{root}": base64.b64encode(bytes(32)).decode(), "{line}": f"\u2014 a {sig}\n", "{sig}": sig}
        for name, value in values.items():
            note = note.replace(name, value)
    with pytest.raises(ValueError):
        parse_checkpoint(note)


@given(st.text())
def test_reading_a_note_raises_nothing_else(text: str) -> None:
    for note in (text, f"a\n1\n{text}\n\n\u2014 a {text}\n"):
        try:
            parse_checkpoint(note)
        except ValueError:
            continue
