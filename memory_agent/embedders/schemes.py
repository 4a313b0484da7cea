"""Choose the arithmetic for this processor: int8 if it has the instructions, otherwise float32.

On x86 processors without VNNI, the 16-bit sums of int8 products saturate, which degrades the vectors, and int8 is only
10 to 20 % faster (onnxruntime issues 5849, 6004, 6695).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memory_agent.errors import SettingsError

Scheme = Literal["int8", "float32"]

_X86 = {"x86_64", "amd64", "i686"}
_ARM = {"aarch64", "arm64"}
_X86_INT8 = ("avx512_vnni", "avx_vnni")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class SchemeChoice:
    """The scheme, the reason for it, and the kernel family that determines how int8 vectors are rounded."""

    scheme: Scheme
    reason: str
    kernels: str


def choose_scheme(setting: str, *, machine: str | None = None, flags: frozenset[str] | None = None) -> SchemeChoice:
    """Resolve the setting `auto`, `int8` or `float32` for this processor. Raises `SettingsError` otherwise."""
    kernels, why = _kernels((machine or platform.machine()).lower(), _cpu_flags() if flags is None else flags)
    if setting == "float32":
        return SchemeChoice("float32", "set in the settings", "float")
    if setting == "int8":
        return SchemeChoice("int8", f"set in the settings; {why}", kernels)
    if setting != "auto":
        raise SettingsError("embedder.scheme", f"must be auto, int8 or float32, not {setting!r}")
    if kernels == "saturating":
        return SchemeChoice("float32", why, "float")
    return SchemeChoice("int8", why, kernels)


def _kernels(machine: str, flags: frozenset[str]) -> tuple[str, str]:
    if machine in _ARM:
        return "dot", "ARM dot products do not saturate"
    found = [name for name in _X86_INT8 if name in flags]
    if machine in _X86 and found:
        return "vnni", f"the processor has {found[0]}"
    return "saturating", "no VNNI was found, and int8 saturates without it"


def _cpu_flags() -> frozenset[str]:
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return frozenset()
    words = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(words.split())
