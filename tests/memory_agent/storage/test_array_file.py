from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memory_agent.errors import IndexDamagedError
from memory_agent.storage import array_file
from memory_agent.storage.array_file import read_arrays, write_arrays
from relay.crypto import SEAL_BYTES, Cipher

DTYPES = ("bool", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", ">i4", ">f8")
BLOCK_BYTES = array_file._BLOCK_BYTES


class State(msgspec.Struct, frozen=True):
    applied: int
    lineage: str


STATE = State(7, "a lineage")


@pytest.fixture(params=["plain", "encrypted"])
def cipher(request: pytest.FixtureRequest) -> Cipher | None:
    return Cipher(bytes(32), "index") if request.param == "encrypted" else None


def small() -> dict[str, npt.NDArray[Any]]:
    return {
        "rows": np.arange(5, dtype=np.int64),
        "words": np.frombuffer(b"the text of a memory", dtype=np.uint8),
        "none": np.zeros((0, 3), dtype=np.float32),
        "scales": np.array([0.5, np.nan], dtype=np.float32),
    }


def same(found: dict[str, npt.NDArray[Any]], wanted: dict[str, npt.NDArray[Any]]) -> bool:
    return list(found) == list(wanted) and all(
        array.shape == wanted[name].shape
        and array.dtype == wanted[name].dtype
        and array.tobytes() == wanted[name].tobytes()
        for name, array in found.items()
    )


@settings(deadline=None)
@given(
    arrays=st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_side=0, max_side=5))),
        max_size=4,
    )
)
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, npt.NDArray[Any]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.arrays"
    write_arrays(path, STATE, arrays)
    state, found = read_arrays(path, State)
    assert state == STATE
    wanted = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    assert same(found, wanted)
    assert all(array.ctypes.data % 64 == 0 for array in found.values() if array.size)


def test_arrays_of_several_blocks_and_parts_come_back_whole(tmp_path: Path, cipher: Cipher | None) -> None:
    path = tmp_path / "columns"
    parts = [
        np.random.default_rng(i).integers(-128, 128, (size, 64), dtype=np.int8)
        for i, size in enumerate([1, 100_000, 65_535, 3])
    ]
    whole = np.concatenate(parts)
    strided = np.arange(3_000_000, dtype=np.int32)[::2]
    write_arrays(path, STATE, {"planes": parts, "strided": strided}, cipher)
    assert same(read_arrays(path, State, cipher)[1], {"planes": whole, "strided": strided})


def test_arrays_may_be_written_to_and_the_file_stays(tmp_path: Path, cipher: Cipher | None) -> None:
    path = tmp_path / "columns"
    write_arrays(path, STATE, small(), cipher)
    before = path.read_bytes()
    arrays = read_arrays(path, State, cipher)[1]
    arrays["rows"][:] = -1
    assert path.read_bytes() == before
    write_arrays(path, STATE, arrays, cipher)  # overwrites the file from which the arrays are mapped
    assert read_arrays(path, State, cipher)[1]["rows"].tolist() == [-1] * 5
    assert arrays["words"].tobytes() == b"the text of a memory"


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_found(tmp_path: Path, cipher: Cipher | None, flip: int) -> None:
    path = tmp_path / "columns"
    write_arrays(path, STATE, small(), cipher)
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ flip]) + whole[i + 1 :])
        with pytest.raises(IndexDamagedError):
            read_arrays(path, State, cipher)


def test_every_truncation_and_everything_appended_is_found(tmp_path: Path, cipher: Cipher | None) -> None:
    path = tmp_path / "columns"
    write_arrays(path, STATE, small(), cipher)
    whole = path.read_bytes()
    for content in [whole[:i] for i in range(len(whole))] + [whole + bytes(n) for n in (1, 64)] + [whole + whole]:
        path.write_bytes(content)
        with pytest.raises(IndexDamagedError):
            read_arrays(path, State, cipher)


@pytest.mark.parametrize("shape", [(1 << 50,), (6,), (0,), (1 << 40, 1 << 40)])
def test_a_shape_that_does_not_fit_the_file_is_refused_before_memory_is_taken(
    tmp_path: Path, cipher: Cipher | None, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "columns"
    write_arrays(path, STATE, {"rows": np.arange(16, dtype=np.int64)}, cipher)
    content = path.read_bytes()
    head, length = content[:64], int.from_bytes(content[-16:-8], "little")
    stored = content[-16 - length : -16]
    index = msgspec.msgpack.decode(stored if cipher is None else cipher.open(stored, head))
    index["arrays"][0][2] = shape
    forged = msgspec.msgpack.encode(index)
    forged = forged if cipher is None else cipher.seal(forged, head)
    end = forged + len(forged).to_bytes(8, "little")
    path.write_bytes(content[: -16 - length] + end + xxhash.xxh3_64_digest(head + end))
    with pytest.raises(IndexDamagedError):
        read_arrays(path, State, cipher)


@settings(deadline=None)
@given(content=st.binary(max_size=300))
def test_any_other_file_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "other.arrays"
    path.write_bytes(content)
    with pytest.raises(IndexDamagedError):
        read_arrays(path, State)


def test_a_missing_file_a_folder_and_another_header_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(IndexDamagedError):
            read_arrays(path, State)
    write_arrays(tmp_path / "columns", {"applied": "seven"}, small())
    with pytest.raises(IndexDamagedError):
        read_arrays(tmp_path / "columns", State)


def test_an_encrypted_file_holds_no_plain_text_and_opens_with_its_key_alone(tmp_path: Path) -> None:
    path, cipher = tmp_path / "columns", Cipher(bytes(32), "index")
    write_arrays(path, STATE, small(), cipher)
    content = path.read_bytes()
    for plain in (b"the text", b"lineage", b"scales", small()["rows"].tobytes()):
        assert plain not in content
    for other in (None, Cipher(bytes(31) + b"1", "index"), Cipher(bytes(32), "lexicon")):
        with pytest.raises(IndexDamagedError):
            read_arrays(path, State, other)
    write_arrays(path, STATE, small())
    with pytest.raises(IndexDamagedError):
        read_arrays(path, State, cipher)


def test_sealed_blocks_cannot_change_places_within_a_file_or_between_two(tmp_path: Path) -> None:
    cipher = Cipher(bytes(32), "index")
    arrays = {name: np.zeros(2 * BLOCK_BYTES, dtype=np.uint8) for name in "ab"}
    first, second = tmp_path / "first", tmp_path / "second"
    write_arrays(first, STATE, arrays, cipher)
    write_arrays(second, STATE, arrays, cipher)
    content, step = first.read_bytes(), BLOCK_BYTES + SEAL_BYTES
    places = [64 + i * step for i in range(4)]
    blocks = [content[place : place + step] for place in places]
    head, tail = content[:64], content[64 + 4 * step :]
    for order in ([1, 0, 2, 3], [2, 1, 0, 3], [0, 1, 3, 2]):
        second.write_bytes(head + b"".join(blocks[i] for i in order) + tail)
        with pytest.raises(IndexDamagedError):
            read_arrays(second, State, cipher)
    second.write_bytes(head + b"".join(blocks) + tail)
    assert same(read_arrays(second, State, cipher)[1], arrays)
    write_arrays(second, STATE, arrays, cipher)
    changed = second.read_bytes()
    second.write_bytes(changed[:64] + blocks[0] + changed[64 + step :])
    with pytest.raises(IndexDamagedError):
        read_arrays(second, State, cipher)


def test_on_a_full_disk_the_old_file_stays_and_nothing_else(tmp_path: Path, cipher: Cipher | None) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    try:
        path = disk / "columns"
        write_arrays(path, STATE, small(), cipher)
        before = path.read_bytes()
        for size in (1 << 20, 10 << 20):
            with pytest.raises(OSError, match="No space left"):
                write_arrays(path, STATE, {"planes": np.zeros(size, dtype=np.uint8)}, cipher)
            assert [file.name for file in disk.iterdir()] == ["columns"]
            assert path.read_bytes() == before
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_pages_that_were_only_checked_are_not_resident(tmp_path: Path) -> None:
    path = tmp_path / "columns"
    write_arrays(path, STATE, {"planes": np.ones(64 << 20, dtype=np.uint8)})
    before = resident_bytes()
    planes = read_arrays(path, State)[1]["planes"]
    assert resident_bytes() - before < 8 << 20
    assert int(planes.sum()) == 64 << 20


def test_chosen_arrays_are_copied_out_of_the_mapping(tmp_path: Path) -> None:
    path, size = tmp_path / "columns", 64 << 20
    write_arrays(path, STATE, {"planes": np.ones(size, dtype=np.uint8), "rows": np.arange(5)})
    before = resident_bytes()
    arrays = read_arrays(path, State, is_copied=lambda name, array: name == "planes" and len(array) == size)[1]
    assert arrays["planes"].flags.owndata
    assert not arrays["rows"].flags.owndata
    assert resident_bytes() - before < size + (8 << 20)  # the copy's source is not resident
    assert int(arrays["planes"].sum()) == size


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
