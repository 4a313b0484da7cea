"""Prepares types for decoding with msgspec, in only one thread at a time.

msgspec 0.22 builds its description of a struct when the struct is first decoded. A second thread that decodes the same
struct at that moment reads an unfinished description, which crashes the process with SIGSEGV
(`tests/relay/test_decoding.py`).
"""

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")
_lock = threading.Lock()
_described: set[object] = set()


def described(type_: T) -> T:
    """Return `type_`, which any number of threads may then decode.

    >>> msgspec.json.decode(b'{"x": 1}', type=described(dict[str, int]))
    {'x': 1}
    """
    if type_ not in _described:
        with _lock:
            msgspec.msgpack.Decoder(type_)
            _described.add(type_)
    return type_
