"""Atomically replaces a plain LMDB environment with a verified, encrypted copy.

The blocks of the old file are freed, not overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import xxhash

from relay.disk import Environment, Transaction, discard_copy, room_for_copy

_PAGE = 10_000

Put = tuple[str, bytes, bytes]
Report = Callable[[int, int], None]  # called with the number of pairs written so far, and the total


def encrypt_in_place(
    environment: Environment,
    open_copy: Callable[[Path], Environment],
    puts: Callable[[Transaction], Iterator[Put]],
    report: Report = lambda done, total: None,
) -> None:
    """Close `environment` and replace its file with an encrypted copy. Durable on return.

    `open_copy` opens an empty encrypted environment. `puts` yields the pairs of the copy, with each key once, from a
    snapshot of `environment`. No other process may have the environment open. If the process is killed, either the old
    or the new file remains. Raises `damaged` if the copy differs from the written data, and the errors of
    `Environment.replace_by`.
    """
    copy = room_for_copy(environment.path)
    try:
        with closing(open_copy(copy)) as target, environment.read() as plain:
            total = sum(plain.count(name) for name in environment.databases)
            expected = _Digests(target, _written(puts(plain), target, total, report))
            with target.read() as encrypted:
                pairs = ((name, *pair) for name in target.databases for pair in encrypted.scan(name))
                found = _Digests(target, pairs)
        for name, digest in expected.of_database.items():
            if found.of_database[name] != digest:
                raise environment.errors.damaged(f"{copy}: the copy of {name} differs from the original")
        environment.replace_by(copy)
    finally:
        discard_copy(copy)


def _written(puts: Iterator[Put], target: Environment, total: int, report: Report) -> Iterator[Put]:
    done = 0
    while page := list(islice(puts, _PAGE)):
        report(done, total)
        with target.write() as writing:
            for name, key, value in page:
                writing.put(name, key, value, append=True)
        yield from page
        done += len(page)
    report(total, total)


class _Digests:
    """The number of pairs in each database, and an order-independent sum of their digests."""

    def __init__(self, environment: Environment, puts: Iterable[Put]) -> None:
        self.of_database = dict.fromkeys(environment.databases, (0, 0))
        for name, key, value in puts:
            count, total = self.of_database[name]
            digest = xxhash.xxh3_128_intdigest(len(key).to_bytes(4, "big") + key + value)
            self.of_database[name] = count + 1, (total + digest) % (1 << 128)
