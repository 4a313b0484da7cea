"""LangGraph: a store whose items are memories, and a node that recalls memories before the model is called.

An item is one memory of type `langgraph`, with an id made from its namespace and key, so `get` is exact. The value is
in the memory's metadata; recall searches the memory's text. `langchain.RunOutcomes` reports how a graph's run ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
    validate_op_namespace,
)

from memory_agent.client import MemoryClient
from memory_agent.errors import InvalidInputError
from memory_agent.frameworks.agent_run import (
    MOST_LEVELS,
    MOST_TEXT_CHARS,
    USUAL_TOKENS,
    current_run_id,
    recall_block,
)
from memory_agent.frameworks.langchain import request_of
from memory_agent.frameworks.paging import listed
from memory_agent.records.arguments import check_object
from memory_agent.records.memories import MemoryFilter, MemoryRecord, MetadataValue
from memory_agent.records.metadata import values_of

TYPE = "langgraph"
MOST_SEARCHED = 1_000
"""If recall cannot apply the filter of a search, this many of the best items are recalled and then filtered."""


class MemoryStore(BaseStore):
    """A LangGraph store backed by one user's memory. May be used from any thread, event loop or forked child.

    A search with a query is a hybrid recall, which ranks by earlier usefulness and is part of the current run
    (`RunOutcomes`). Other searches return items by last update, newest first. `fields` are the paths of the text to
    search, as in LangGraph's `IndexConfig`; by default, every string in the value. Values must be JSON, and secrets in
    them are masked. `ttl` is not supported. Raises the errors of the client. Before executing a batch, raises
    `InvalidInputError` if a value is not JSON.

    >>> store = MemoryStore(memory)
    >>> store.put(("alice", "facts"), "vpn", {"text": "Staging needs the VPN"})
    >>> [(item.key, item.value) for item in store.search(("alice",), query="what does staging need?")]
    [('vpn', {'text': 'Staging needs the VPN'})]
    """

    def __init__(self, memory: MemoryClient, *, fields: Sequence[str] = ()) -> None:
        self.memory = memory
        self._fields = tuple(fields)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations in order. Puts are durable on return; each is one write."""
        ops = list(ops)
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, PutOp) and op.value is not None:
                check_object("value", dict(op.value), MOST_LEVELS)
        return [self._run(op) for op in ops]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Like `batch`. The batch is completed even if the caller is cancelled."""
        return await asyncio.to_thread(self.batch, ops)

    def _run(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            found = self.memory.get([_id_of(op.namespace, op.key)])
            return Item(**_fields_of(found[0])) if found else None
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(op)
        return self._put(op)

    def _put(self, op: PutOp) -> None:
        if op.value is None:
            self.memory.forget([_id_of(op.namespace, op.key)])
            return
        value = dict(op.value)
        self.memory.remember(
            self._text(op, value),
            source="worker_result",
            id=_id_of(op.namespace, op.key),
            type=TYPE,
            metadata={
                "namespace": list(op.namespace),
                "prefixes": [".".join(op.namespace[:depth]) for depth in range(1, len(op.namespace) + 1)],
                "key": op.key,
                "is_indexed": op.index is not False,
                "value": value,
            },
        )

    def _text(self, op: PutOp, value: dict[str, Any]) -> str:
        if op.index is False:
            return str(op.key)
        paths = op.index or self._fields
        if paths:
            texts = [text for path in paths for text in get_text_at_path(value, path)]
        else:
            texts = [text for _, text in values_of(value) if isinstance(text, str)]
        text = "\n".join(texts) if any(map(str.strip, texts)) else json.dumps(value, ensure_ascii=False)
        return text[:MOST_TEXT_CHARS]

    def _search(self, op: SearchOp) -> list[SearchItem]:
        if op.limit <= 0:
            return []
        if not op.query:
            records = self._matching(op)
            return [SearchItem(**_fields_of(one)) for one in islice(records, op.offset, op.offset + op.limit)]
        recalled = self._recalled(op)
        found = recalled[op.offset : op.offset + op.limit]
        begin = max(0, op.offset - len(recalled))
        others = self._matching(op, is_indexed=False)  # without a score, as in LangGraph's own stores
        return found + [SearchItem(**_fields_of(one)) for one in islice(others, begin, begin + op.limit - len(found))]

    def _recalled(self, op: SearchOp) -> list[SearchItem]:
        """Return the indexed items, best first."""
        is_exact = _pushed_down(op.filter).keys() == (op.filter or {}).keys()
        answer = self.memory.recall(
            op.query or "",
            op.offset + op.limit if is_exact else MOST_SEARCHED,
            _filter(op, is_indexed=True),
            min_relevance=0.0,
            **({"by_run": current_run_id(self.memory)} if is_exact else {"unlogged": True}),
        )
        items = []
        for one in answer.memories:
            equal = self.memory.get([origin.id for origin in one.origins]) if one.count > 1 else []
            records = {record.id: record for record in (one.record, *equal)}.values()
            items += [SearchItem(**_fields_of(record), score=one.sona_score) for record in records]
        return [item for item in items if _matches(item.value, op.filter or {})]

    def _matching(self, op: SearchOp, **metadata: MetadataValue) -> Iterator[MemoryRecord]:
        """Yield the records of the items that match, most recently updated first."""
        for record in listed(self.memory, _filter(op, **metadata), "updated"):
            if _matches(record.metadata["value"], op.filter or {}):
                yield record

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        """Return the namespaces that match. Reads every item of the store."""
        every = {tuple(record.metadata["namespace"]) for record in listed(self.memory, MemoryFilter(type=TYPE))}
        matching = {one for one in every if all(_is_under(one, condition) for condition in op.match_conditions or ())}
        cut = {one[: op.max_depth] for one in matching}
        return sorted(cut)[op.offset : op.offset + op.limit]


def recall_node(
    memory: MemoryClient, *, key: str = "memories", context_tokens: int = USUAL_TOKENS
) -> RunnableLambda[Any, dict[str, str]]:
    """Return a node that sets `key` of the state to a block of memories for the last user message, or to "".

    Put it before the node that calls the model. The recall belongs to the graph's run and to its `thread_id`.

    >>> node = recall_node(memory)
    >>> "VPN" in node.invoke({"messages": [("user", "deploy to staging")]})["memories"]
    True
    """

    def recall_memories(state: Any, config: RunnableConfig) -> dict[str, str]:
        request = request_of(state)
        if request is None:
            return {key: ""}
        session_id = config.get("configurable", {}).get("thread_id")
        return {key: recall_block(memory, request, session_id=session_id, context_tokens=context_tokens)}

    return RunnableLambda(recall_memories)


def _id_of(namespace: tuple[str, ...], key: str) -> str:
    return f"langgraph-{sha256(json.dumps([namespace, key]).encode()).hexdigest()}"


def _fields_of(record: MemoryRecord) -> dict[str, Any]:
    return {
        "namespace": tuple(record.metadata["namespace"]),
        "key": record.metadata["key"],
        "value": record.metadata["value"],
        "created_at": record.timestamp,
        "updated_at": record.updated_at or record.timestamp,
    }


def _filter(op: SearchOp, **metadata: MetadataValue) -> MemoryFilter:
    conditions = metadata | {f"value.{path}": value for path, value in _pushed_down(op.filter).items()}
    if op.namespace_prefix:
        conditions["prefixes"] = ".".join(op.namespace_prefix)
    return MemoryFilter(type=TYPE, metadata={**conditions})


def _pushed_down(wanted: Mapping[str, Any] | None) -> dict[str, MetadataValue]:
    """A metadata filter supports only equality with a string or a number."""
    return {
        key: value
        for key, value in (wanted or {}).items()
        if isinstance(value, str | int | float) and not isinstance(value, bool) and len(key) < 500
    }


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, other: bool(value == other),
    "$ne": lambda value, other: bool(value != other),
    "$gt": lambda value, other: float(value) > float(other),
    "$gte": lambda value, other: float(value) >= float(other),
    "$lt": lambda value, other: float(value) < float(other),
    "$lte": lambda value, other: float(value) <= float(other),
}


def _matches(value: Any, wanted: Any) -> bool:
    """Whether a stored value matches a LangGraph filter. Objects are compared member by member; lists are compared as a
    whole."""
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_compares(value, operator, other) for operator, other in wanted.items())
        return isinstance(value, Mapping) and all(_matches(value.get(key), one) for key, one in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and list(value) == list(wanted)
    return bool(value == wanted)


def _compares(value: Any, operator: str, other: Any) -> bool:
    if operator not in _OPERATORS:
        raise InvalidInputError(f"filter.{operator}", f"must be one of {', '.join(_OPERATORS)}")
    try:
        return _OPERATORS[operator](value, other)
    except (TypeError, ValueError):
        return False  # a missing value, or one that is not a number, is neither greater nor less


def _is_under(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    if len(namespace) < len(condition.path):
        return False
    part = namespace[: len(condition.path)]
    if condition.match_type == "suffix":
        part = namespace[len(namespace) - len(condition.path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, condition.path, strict=True))
