"""Test that values and names can be decrypted only with the key that encrypted them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.crypto import NAME_BYTES, SEAL_BYTES, Cipher
from relay.errors import UndecipherableError

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CIPHER = Cipher(KEY, "memory")


@given(st.binary(max_size=4096), st.binary(max_size=64))
def test_a_sealed_value_decrypts_and_differs_each_time(plain: bytes, about: bytes) -> None:
    sealed = CIPHER.seal(plain, about)
    assert Cipher(KEY, "memory").open(sealed, about) == plain
    assert len(sealed) == len(plain) + SEAL_BYTES
    assert CIPHER.seal(plain, about) != sealed


@given(st.binary(min_size=1, max_size=256))
def test_an_encrypted_name_decrypts_and_is_deterministic(plain: bytes) -> None:
    encrypted = CIPHER.name(plain)
    assert Cipher(KEY, "memory").name(plain) == encrypted
    assert CIPHER.plain_name(encrypted) == plain
    assert len(encrypted) == len(plain) + NAME_BYTES


@given(st.integers(0, 50 * 8 + SEAL_BYTES * 8 - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    sealed = bytearray(CIPHER.seal(b"x" * 50, b"records 1"))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(UndecipherableError):
        CIPHER.open(bytes(sealed), b"records 1")


@pytest.mark.parametrize(
    ("cipher", "about"),
    [(Cipher(OTHER, "memory"), b"here"), (Cipher(KEY, "journal"), b"here"), (CIPHER, b"there")],
    ids=["another key", "another purpose", "another place"],
)
def test_another_key_purpose_or_context_does_not_decrypt(cipher: Cipher, about: bytes) -> None:
    with pytest.raises(UndecipherableError):
        cipher.open(CIPHER.seal(b"the spare key is under the stone", b"here"), about)


@pytest.mark.parametrize("cut", [b"", b"x", b"x" * 15, b"x" * 27])
def test_truncated_values_are_refused(cut: bytes) -> None:
    with pytest.raises(UndecipherableError):
        CIPHER.open(cut, b"")
    with pytest.raises(UndecipherableError):
        CIPHER.plain_name(cut)


def test_a_name_of_another_key_is_refused() -> None:
    with pytest.raises(UndecipherableError):
        Cipher(OTHER, "memory").plain_name(CIPHER.name(b"run-7"))


def test_a_key_id_distinguishes_keys_without_revealing_them() -> None:
    assert CIPHER.key_id == Cipher(KEY, "journal").key_id != Cipher(OTHER, "memory").key_id
    assert CIPHER.key_id not in KEY


def test_a_fingerprint_is_deterministic_and_differs_by_key() -> None:
    prints = {cipher.fingerprint(b"s-1") for cipher in (CIPHER, Cipher(KEY, "memory"))}
    assert len(prints) == 1
    assert {len(one) for one in prints} == {16}
    others = {Cipher(OTHER, "memory").fingerprint(b"s-1"), Cipher(KEY, "journal").fingerprint(b"s-1")}
    assert not prints & (others | {CIPHER.fingerprint(b"s-2")})
