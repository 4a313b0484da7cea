"""Encode requests to the embedder process and its answers as frames. Pure: no sockets.

A question is `[header, text, ...]`, and an answer is `[header, array, ...]`. Headers are MessagePack, texts are UTF-8,
and arrays are little-endian. Vectors are sent with their origin, so vectors from a restarted embedder are never stored
under the previous stamp. New header fields go last and have defaults.

Shapes: n texts with p passages and w words, q words of a query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from memory_agent.embedders.protocol import EmbedderInfo
from memory_agent.errors import ERRORS, MemoryAgentError, ModelError, ProtocolError
from memory_agent.records.embedded import WORD_DIMENSIONS, Embedded, EmbeddedQuery, word_bytes
from memory_agent.records.memories import ApiCounts
from relay import described

Frames = list[bytes]

_FLOAT, _HALF, _INT, _BYTE = "<f4", "<f2", "<i4", "u1"


class InfoQuestion(msgspec.Struct, frozen=True, tag="info"):
    """Request the origin of the vectors; with `is_former`, the origin of the former embedder's vectors."""

    is_former: bool = False


class QueryQuestion(msgspec.Struct, frozen=True, tag="query"):
    """Embed the text that follows, ahead of bulk work, unless `timeout_s` has passed since `asked_at_s`."""

    timeout_s: float
    asked_at_s: float | None = None  # monotonic time, which all processes on the machine share
    is_text: bool = False  # embed as a text to store, and answer as for bulk texts
    is_former: bool = False
    traceparent: str = ""  # a W3C trace context, or ""

    def remaining_s(self, now_s: float) -> float:
        """Return the seconds until the timeout; negative after it."""
        return self.timeout_s - (0.0 if self.asked_at_s is None else max(0.0, now_s - self.asked_at_s))


class BulkQuestion(msgspec.Struct, frozen=True, tag="bulk"):
    """Embed the texts that follow, at low priority."""


class TokensQuestion(msgspec.Struct, frozen=True, tag="tokens"):
    """Count the tokens of the text that follows."""


Question = InfoQuestion | QueryQuestion | BulkQuestion | TokensQuestion


class Answer(msgspec.Struct, frozen=True):
    """The header of an answer. It describes an error, `rows` texts, a query (`words` and the share `read`), or a token
    count."""

    info: EmbedderInfo | None = None
    rows: int = 0
    tokens: int = 0
    code: str = ""
    args: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    read: float = 1.0
    calls: ApiCounts | None = None  # calls to a provider; only in answers to `InfoQuestion`


_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(described(Question))
_answers = msgspec.msgpack.Decoder(described(Answer))


def encode_question(question: Question, texts: Sequence[str] = ()) -> Frames:
    return [_encoder.encode(question), *(text.encode() for text in texts)]


def decode_question(frames: Sequence[bytes]) -> tuple[Question, list[str]]:
    """Return a question and its texts. Raises `ProtocolError`."""
    try:
        question = _questions.decode(frames[0])
        texts = [frame.decode() for frame in frames[1:]]
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid request to an embedder: {error}") from error
    if isinstance(question, QueryQuestion | TokensQuestion) and len(texts) != 1:
        raise ProtocolError(f"expected one text, got {len(texts)}")
    return question, texts


def encode_answer(answer: Answer, arrays: Sequence[tuple[npt.NDArray[Any], str]] = ()) -> Frames:
    """Return the frames of an answer; each array is sent with its type."""
    return [_encoder.encode(answer), *(np.ascontiguousarray(array, dtype).tobytes() for array, dtype in arrays)]


def encode_texts(info: EmbedderInfo, found: Sequence[Embedded]) -> Frames:
    sizes = [(len(one.vectors), len(one.word_bits), one.length) for one in found]
    arrays: tuple[tuple[npt.NDArray[Any], str], ...] = ((np.array(sizes, np.int32), _INT),)
    if found:
        arrays += (
            (np.concatenate([one.vectors for one in found]), _FLOAT),
            (np.concatenate([one.spans for one in found]), _INT),
            (np.concatenate([one.word_bits for one in found]), _BYTE),
        )
    return encode_answer(Answer(info, len(found)), arrays)


def encode_query(info: EmbedderInfo, query: EmbeddedQuery) -> Frames:
    arrays = (query.vector, _FLOAT), (query.word_vectors, _HALF)
    return encode_answer(Answer(info, 1, words=query.words, read=query.read), arrays)


def encode_failure(error: Exception) -> Frames:
    """Return the frames of an error. Any exception other than ours becomes an internal error that contains only its
    type name."""
    if isinstance(error, MemoryAgentError):
        return encode_answer(Answer(code=error.code, args=tuple(str(part) for part in error.args)))
    return encode_answer(Answer(code=MemoryAgentError.code, args=(f"embedder: {type(error).__name__}",)))


def decode_answer(frames: Sequence[bytes]) -> Answer:
    """Return an answer. Raises the error in the answer, or `ProtocolError`."""
    try:
        answer = _answers.decode(frames[0])
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"invalid answer from an embedder: {error}") from error
    if answer.code:
        raise _rebuild(answer)
    return answer


def decode_texts(frames: Sequence[bytes], rows: int) -> tuple[EmbedderInfo, list[Embedded]]:
    """Return the origin and the embedded texts. Raises the same errors as `decode_answer`."""
    answer = decode_answer(frames)
    if answer.info is None or answer.rows != rows or len(frames) != (5 if rows else 2):
        raise ProtocolError(f"expected {rows} texts")
    if not rows:
        return answer.info, []
    sizes = _array(frames[1], _INT, 3)
    ends = np.cumsum(sizes, axis=0).tolist()
    vectors, spans = _array(frames[2], _FLOAT, answer.info.ndim), _array(frames[3], _INT, 2)
    bits = _array(frames[4], _BYTE, word_bytes(answer.info.ndim))
    is_odd = len(sizes) != rows or len(spans) != len(vectors) or bool((sizes < (1, 0, 0)).any())
    if is_odd or ends[-1][:2] != [len(vectors), len(bits)]:
        raise ProtocolError("the arrays of an answer are inconsistent")
    return answer.info, [
        Embedded(vectors[p - count : p], spans[p - count : p], bits[w - words : w], length)
        for (count, words, length), (p, w, _) in zip(sizes.tolist(), ends, strict=True)
    ]


def decode_query(frames: Sequence[bytes]) -> tuple[EmbedderInfo, EmbeddedQuery]:
    """Return the origin and the embedded query. Raises the same errors as `decode_answer`."""
    answer = decode_answer(frames)
    if answer.info is None or len(frames) != 3:
        raise ProtocolError("expected a query")
    ndim = answer.info.ndim
    vector, words = _array(frames[1], _FLOAT, ndim), _array(frames[2], _HALF, min(ndim, WORD_DIMENSIONS))
    if (len(vector), len(words)) != (1, len(answer.words)):
        raise ProtocolError(f"{len(vector)} vectors and {len(words)} word vectors are not a valid answer to a query")
    return answer.info, EmbeddedQuery(vector[0], answer.words, words, answer.read)


def _array(frame: bytes, dtype: str, width: int) -> npt.NDArray[Any]:
    """Return the (k, width) array of a frame."""
    if width < 1 or len(frame) % (np.dtype(dtype).itemsize * width):
        raise ProtocolError(f"{len(frame)} bytes are not whole rows of width {width}")
    return np.frombuffer(frame, dtype).reshape(-1, width)


def _rebuild(answer: Answer) -> MemoryAgentError:
    kind = ERRORS.get(answer.code, ModelError)
    try:
        return kind(*answer.args)
    except TypeError:
        return ModelError(f"{answer.code}: {answer.args}")
