"""Lets usearch and ONNX Runtime live in one process.

Where usearch is loaded first, ONNX Runtime dies with SIGSEGV while it is imported (usearch 2.26.6, onnxruntime 1.31.1,
counted; decision 0010). The likely cause: usearch brings a C++ library of its own inside its extension, whose locale
ids are unique process-wide (STB_GNU_UNIQUE), and ONNX Runtime, which uses the system's libstdc++, takes those ids for
its own. Once the system's locale exists, both orders work. Rejected: importing ONNX Runtime first: 35 MB in a process
that only searches.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

_LIBRARY = "libstdc++.so.6"
_CLASSIC_LOCALE = "_ZNSt6locale7classicEv"  # std::locale::classic()


def settle_cxx_locale() -> None:
    """Make the system's C++ locale, before an extension brings another. Does nothing where there is no libstdc++."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(_LIBRARY)[_CLASSIC_LOCALE]()
