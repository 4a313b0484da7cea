"""Describes types for msgspec, one thread at a time, before they are decoded.

msgspec 0.22 describes a struct when it is first decoded. A second thread that decodes the same struct meanwhile reads
an unfinished description and crashes the process with SIGSEGV (`tests/relay/test_decoding.py`).
"""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_described: set[object] = set()


def described(type_: T) -> T:
    """Return `type_`, which any number of threads may decode from now on.

    >>> msgspec.json.decode(b'{"x": 1}', type=described(dict[str, int]))
    {'x': 1}
    """
    if type_ not in _described:
        with _lock:
            msgspec.msgpack.Decoder(type_)
            _described.add(type_)
    return type_
