"""Encodes requests to the embedder process and its answers as frames. Pure: no sockets.

A question is `[header, text, ...]`, an answer `[header, vectors]`: headers are MessagePack, texts UTF-8, vectors a
little-endian float32 (n, d) array. Vectors are sent with their origin, so that vectors of a restarted embedder are
never stored under the previous stamp. New fields go last, with defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from memory_agent.embedders import EmbedderInfo, Embeddings
from memory_agent.errors import ERRORS, MemoryAgentError, ModelError, ProtocolError

Frames = list[bytes]


class InfoQuestion(msgspec.Struct, frozen=True, tag="info"):
    """Ask for the origin of the vectors."""


class QueryQuestion(msgspec.Struct, frozen=True, tag="query"):
    """Embed the one text that follows, ahead of bulk work, unless `timeout_s` has passed since `asked_at_s`.

    `asked_at_s` is in monotonic time, which all processes of the machine share, so time spent in a socket counts.
    """

    timeout_s: float
    asked_at_s: float | None = None

    def remaining_s(self, now_s: float) -> float:
        """Return the seconds until the timeout; negative after it."""
        return self.timeout_s - (0.0 if self.asked_at_s is None else max(0.0, now_s - self.asked_at_s))


class BulkQuestion(msgspec.Struct, frozen=True, tag="bulk"):
    """Embed the texts that follow, at low priority."""


class TokensQuestion(msgspec.Struct, frozen=True, tag="tokens"):
    """Count the tokens of the one text that follows."""


Question = InfoQuestion | QueryQuestion | BulkQuestion | TokensQuestion


class Answer(msgspec.Struct, frozen=True):
    """One of: `rows` vectors and their origin, a count of tokens, an error's code and arguments."""

    info: EmbedderInfo | None = None
    rows: int = 0
    tokens: int = 0
    code: str = ""
    args: tuple[Any, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


def encode_question(question: Question, texts: Sequence[str] = ()) -> Frames:
    """Return the frames of a question."""
    return [_encoder.encode(question), *(text.encode() for text in texts)]


def decode_question(frames: Sequence[bytes]) -> tuple[Question, list[str]]:
    """Return a question and its texts. Raises `ProtocolError`."""
    try:
        question = _questions.decode(frames[0])
        texts = [frame.decode() for frame in frames[1:]]
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a question to an embedder: {error}") from error
    if isinstance(question, QueryQuestion | TokensQuestion) and len(texts) != 1:
        raise ProtocolError(f"expected one text, got {len(texts)}")
    return question, texts


def encode_answer(answer: Answer, vectors: Embeddings | None = None) -> Frames:
    """Return the frames of an answer."""
    header = _encoder.encode(answer)
    return [header] if vectors is None else [header, np.ascontiguousarray(vectors, dtype="<f4").tobytes()]


def encode_failure(error: Exception) -> Frames:
    """Return the frames of an error; one that is not ours is sent as an internal error with only its type's name."""
    if isinstance(error, MemoryAgentError):
        return encode_answer(Answer(code=error.code, args=tuple(str(part) for part in error.args)))
    return encode_answer(Answer(code=MemoryAgentError.code, args=(f"embedder: {type(error).__name__}",)))


def decode_answer(frames: Sequence[bytes]) -> Answer:
    """Return an answer. Raises the error that it carries, or `ProtocolError`."""
    try:
        answer = _answers.decode(frames[0])
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an answer of an embedder: {error}") from error
    if answer.code:
        raise _rebuild(answer)
    return answer


def decode_vectors(frames: Sequence[bytes], rows: int) -> tuple[EmbedderInfo, Embeddings]:
    """Return the origin and the (rows, d) vectors. Raises the errors of `decode_answer`."""
    answer = decode_answer(frames)
    if answer.info is None or answer.rows != rows or len(frames) != 2:
        raise ProtocolError(f"expected {rows} vectors")
    if len(frames[1]) != rows * answer.info.ndim * 4:
        raise ProtocolError(f"{len(frames[1])} bytes are not {rows} vectors of {answer.info.ndim} dimensions")
    return answer.info, np.frombuffer(frames[1], dtype="<f4").reshape(rows, answer.info.ndim).astype(np.float32)


def _rebuild(answer: Answer) -> MemoryAgentError:
    kind = ERRORS.get(answer.code, ModelError)
    try:
        return kind(*answer.args)
    except TypeError:
        return ModelError(f"{answer.code}: {answer.args}")
