"""A reranker that calls a language model through the HTTP API of OpenAI (chat completions) or Anthropic (messages).

Requests contain a JSON schema for the reply. Servers may ignore it, so `prompt.read_reply` validates the reply.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from memory_agent.errors import InvalidSelectionError, ProviderUnavailableError
from memory_agent.model_apis import ModelEndpoint, open_api
from memory_agent.records.memories import ApiCounts
from memory_agent.rerankers.prompt import Prompt, prompt_of, read_reply, schema_of
from memory_agent.rerankers.protocol import Selection, Snippet
from memory_agent.settings import JudgeSettings

if TYPE_CHECKING:
    from memory_agent.model_apis.api import ModelApi

_ANSWER_BYTES = 1 << 20
SERVERS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}
"""Each protocol's usual URL."""
_ANTHROPIC_VERSION = "2023-06-01"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _ChatUsage | None = None

    @property
    def text(self) -> str:
        return (self.choices[0].message.content or "") if self.choices else ""

    @property
    def tokens(self) -> tuple[int, int]:
        return (0, 0) if self.usage is None else (self.usage.prompt_tokens, self.usage.completion_tokens)


class _Block(msgspec.Struct):
    type: str
    text: str = ""


class _MessageUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    content: list[_Block]
    usage: _MessageUsage | None = None

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if block.type == "text")

    @property
    def tokens(self) -> tuple[int, int]:
        if self.usage is None:
            return 0, 0
        cached = (self.usage.cache_read_input_tokens or 0) + (self.usage.cache_creation_input_tokens or 0)
        return self.usage.input_tokens + cached, self.usage.output_tokens


def endpoint_of(settings: JudgeSettings) -> ModelEndpoint:
    """Return the endpoint of the judge's model. `settings.server` must be one of `SERVERS`."""
    is_anthropic = settings.server == "anthropic"
    return ModelEndpoint(
        setting="judge",
        provider="judge",
        url=settings.url or SERVERS[settings.server],
        key=settings.api_key,
        key_header="x-api-key" if is_anthropic else "Authorization",
        key_scheme="" if is_anthropic else "Bearer ",
        headers={"anthropic-version": _ANTHROPIC_VERSION} if is_anthropic else {},
        timeout_s=3600.0,  # the deadline of a recall limits each call
        answer_bytes=_ANSWER_BYTES,
    )


class ChatModel:
    """A language model behind an HTTP API. Thread-safe; several memories of a process share one instance."""

    def __init__(self, settings: JudgeSettings) -> None:
        """Prepare without connecting or importing an HTTP client."""
        self._settings = settings
        self._api: ModelApi | None = None
        self._is_closed = False
        self._guard = threading.Lock()
        self._slots = threading.BoundedSemaphore(settings.at_once)

    def __call__(self, query: str, candidates: Sequence[Snippet], most: int, timeout_s: float) -> Selection:
        """Like `Reranker`. Raises `ProviderError`, `ProviderUnavailableError` and `InvalidSelectionError`."""
        prompt = prompt_of(query, candidates, most)
        if not self._slots.acquire(blocking=False):
            raise ProviderUnavailableError("judge", f"{self._settings.at_once} recalls wait for it (judge.at_once)")
        try:
            answer = self._ask(prompt, timeout_s)
        finally:
            self._slots.release()
        read, written = (max(0, tokens) for tokens in answer.tokens)
        try:
            selected, notes = read_reply(answer.text, candidates)
        except InvalidSelectionError as error:
            raise InvalidSelectionError(error.reason, read, written) from error
        return Selection(selected, notes, read, written)

    def calls(self) -> ApiCounts | None:
        """Return counts of the calls to the server, or None before the first one."""
        return None if self._api is None else self._api.counts()

    def close(self) -> None:
        """Cancel the calls in progress. Idempotent."""
        with self._guard:
            self._is_closed = True
            api = self._api
        if api is not None:
            api.close()

    def _opened(self) -> ModelApi:
        with self._guard:
            if self._is_closed:
                raise ProviderUnavailableError("judge", "was closed")
            self._api = self._api or open_api(endpoint_of(self._settings))
            return self._api

    def _ask(self, prompt: Prompt, timeout_s: float) -> _Completion | _Answer:
        settings, api, user = self._settings, self._opened(), {"role": "user", "content": prompt.user}
        schema = schema_of(settings.candidates)
        body: dict[str, Any] = {"model": settings.model}
        if settings.server == "anthropic":
            format = {"type": "json_schema", "schema": schema}
            body |= {"system": prompt.system, "messages": [user], "output_config": {"format": format}}
            body |= {"max_tokens": settings.reply_tokens} | settings.parameters
            return api.post("/messages", body, _Answer, timeout_s)
        named = {"name": "selection", "strict": True, "schema": schema}
        body |= {"messages": [{"role": "system", "content": prompt.system}, user]}
        body |= {"response_format": {"type": "json_schema", "json_schema": named}}
        body |= {"max_completion_tokens": settings.reply_tokens} | settings.parameters
        return api.post("/chat/completions", body, _Completion, timeout_s)
