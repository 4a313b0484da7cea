"""Downloads files of a pinned revision from the model hub and verifies them before installing them.

Needs the optional library (`pip install memory-agent[hub]`). Rejected: the hub's shared cache, whose files other
programs may change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory_agent.embedders import ByteProgress
from memory_agent.embedders.checksums import replacing, verify_file
from memory_agent.errors import ModelMissingError


def download(repository: str, revision: str, sums: dict[str, str], folder: Path, progress: ByteProgress | None) -> None:
    """Download the files of `sums` into `folder`, verifying each and replacing it atomically.

    Raises `ModelMissingError` if the hub or its library is not available, `ModelChecksumError` if a file differs.
    """
    fetch = _fetcher(progress)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hub-") as staging:
        for name, expected in sums.items():
            path = Path(fetch(repository, name, revision, staging))
            verify_file(path, expected)
            with replacing(folder / name) as temporary:
                path.replace(temporary)


def _fetcher(progress: ByteProgress | None) -> Callable[[str, str, str, str], str]:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
        from huggingface_hub.utils import tqdm
    except ImportError as error:
        raise ModelMissingError("the model hub needs `pip install memory-agent[hub]`") from error

    class Reporting(tqdm):  # type: ignore[misc]
        """The hub's progress bar, silent, reporting to `progress`."""

        def __init__(self, *args: Any, **keywords: Any) -> None:
            keywords.pop("name", None)
            super().__init__(*args, **(keywords | {"disable": progress is None, "file": _Nowhere()}))

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if progress is not None:
                progress(str(self.desc or ""), int(self.n), int(self.total or 0))
            return bool(shown)

    def fetch(repository: str, name: str, revision: str, staging: str) -> str:
        try:
            return str(hf_hub_download(repository, name, revision=revision, local_dir=staging, tqdm_class=Reporting))
        except (OSError, EntryNotFoundError, HfHubHTTPError) as error:
            raise ModelMissingError(f"{repository}/{name} could not be fetched: {type(error).__name__}") from error

    return fetch


class _Nowhere:
    """A stream that discards what is written."""

    def write(self, _text: str) -> int:
        return 0

    def flush(self) -> None:
        return None
