"""Test the LangGraph adapters in an environment with LangGraph.

The store is tested for the behaviour that `tests/test_store.py` of langgraph-checkpoint expects.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.types import Command, interrupt

from memory_agent import MemoryClient
from memory_agent.errors import InvalidInputError, UnavailableError
from memory_agent.frameworks import langgraph
from memory_agent.frameworks.langchain import RunOutcomes
from memory_agent.frameworks.langgraph import MemoryStore, recall_node


@pytest.fixture
def memory(user: str) -> Iterator[MemoryClient]:
    with MemoryClient(user) as memory:
        yield memory


@pytest.fixture
def store(memory: MemoryClient) -> MemoryStore:
    return MemoryStore(memory)


def keys(items: Any) -> list[str]:
    return [item.key for item in items]


VALUE = {
    "text": "Staging needs the VPN",
    "n": 2**60,
    "x": 0.1,
    "none": None,
    "ok": True,
    "in": {"list": [1, {"a": []}]},
}


def test_an_item_is_returned_as_it_was_put_replaced_and_deleted(store: MemoryStore) -> None:
    assert store.get(("a", "b"), "k") is None
    store.put(("a", "b"), "k", VALUE)
    first = store.get(("a", "b"), "k")
    assert first is not None
    assert (first.value, first.key, first.namespace) == (VALUE, "k", ("a", "b"))
    store.put(("a", "b"), "k", {"text": "Staging needs no VPN"})
    second = store.get(("a", "b"), "k")
    assert second is not None
    assert (second.value, second.created_at) == ({"text": "Staging needs no VPN"}, first.created_at)
    assert second.updated_at > first.updated_at
    assert [store.get(*other) for other in ((("a",), "k"), (("a", "b"), "K"), (("a",), "b.k"))] == [None] * 3
    store.delete(("a", "b"), "k")
    store.delete(("a", "b"), "k")
    assert store.get(("a", "b"), "k") is None
    assert keys(store.search(("a", "b"), query="VPN")) == []
    store.put(("a", "b"), "k", {"text": "back"})
    assert keys(store.search(())) == ["k"]


def test_a_long_value_is_kept_whole_and_found_by_its_beginning(store: MemoryStore) -> None:
    value = {"text": "Staging needs the VPN. " + f"{'x' * 200} " * 600}  # few tokens to embed
    store.put(("a",), "k", value)
    assert [item.value for item in store.search(("a",), query="what does staging need?")] == [value]


def test_keys_that_look_alike_are_different_items(store: MemoryStore) -> None:
    places = [(("a", "b"), "c"), (("a",), "b/c"), (("a/b",), "c"), (("a",), 'b","c'), (("ü",), "日本"), (("a",), "")]
    for number, (namespace, key) in enumerate(places):
        store.put(namespace, key, {"number": number})
    assert [store.get(*place).value["number"] for place in places] == list(range(len(places)))  # type: ignore[union-attr]


def test_a_batch_runs_in_order(store: MemoryStore) -> None:
    space = ("a",)
    results = store.batch(
        [
            GetOp(space, "k"),
            PutOp(space, "k", {"v": 1}),
            GetOp(space, "k"),
            PutOp(space, "k", {"v": 2}),
            SearchOp(space),
            ListNamespacesOp((MatchCondition("prefix", ("a",)),)),
            PutOp(space, "k", None),
            GetOp(space, "k"),
        ]
    )
    assert results[0] is results[1] is results[3] is results[7] is None
    assert results[2].value == {"v": 1}  # type: ignore[union-attr]
    assert [item.value for item in results[4]] == [{"v": 2}]  # type: ignore[union-attr]
    assert results[5] == [("a",)]


def test_filters_compare_as_in_langgraph(store: MemoryStore) -> None:
    for number in range(6):
        value = {"n": number, "color": "red" if number % 2 else "blue", "in": {"deep": number}, "tags": [number]}
        store.put(("a",), str(number), value if number else {"other": "x"})
    expected = {
        "1 3 5": [{"color": "red"}, {"color": {"$eq": "red"}}],
        "0 2 4": [{"color": {"$ne": "red"}}],
        "4 5": [{"n": {"$gt": 3}}, {"n": {"$gte": 4}}],
        "1 2": [{"n": {"$lt": 3}}, {"n": {"$lte": 2}}],
        "3": [{"n": {"$gt": 2}, "color": "red", "in": {"deep": {"$lt": 5}}}, {"in": {"deep": 3}}, {"tags": [3]}],
        "": [{"n": "3"}, {"absent": 1}],
        "0": [{"n": None}],
    }
    for found, filters in expected.items():
        for wanted in filters:
            assert " ".join(sorted(keys(store.search(("a",), filter=wanted)))) == found, wanted
            assert " ".join(sorted(keys(store.search(("a",), filter=wanted, query="red")))) == found, wanted
    with pytest.raises(InvalidInputError, match="filter"):
        store.search(("a",), filter={"n": {"$regex": "x"}})


def test_pages_of_a_search_are_its_full_listing(store: MemoryStore) -> None:
    for space in (("a",), ("a", "b"), ("ab",), ("a", "c", "d")):
        for number in range(7):
            store.put(space, f"k{number}", {"i": number, "even": number % 2 == 0})

    def places(**options: Any) -> list[tuple[tuple[str, ...], str]]:
        return [(item.namespace, item.key) for item in store.search(("a",), **options)]

    full = places(limit=100)
    assert {space for space, _ in full} == {("a",), ("a", "b"), ("a", "c", "d")}
    assert len(full) == 21
    assert [place for offset in range(0, 21, 4) for place in places(limit=4, offset=offset)] == full
    even = places(filter={"even": True}, limit=100)
    assert places(filter={"even": True}, limit=3, offset=2) == even[2:5]
    assert len(places()) == 10
    assert len(set(places(query="even", limit=100))) == 21
    for number in range(7):
        store.put(("a",), f"not indexed {number}", {"i": number}, index=False)
    ranked = places(query="even", limit=100)
    assert len(ranked) == 28
    assert [place for offset in range(0, 28, 4) for place in places(query="even", limit=4, offset=offset)] == ranked


def test_a_query_ranks_by_meaning_and_equal_texts_stay_separate_items(store: MemoryStore) -> None:
    store.put(("a",), "vpn", {"text": "Staging is behind the VPN"})
    store.put(("a",), "lunch", {"text": "Lunch is at noon"})
    for number in range(5):
        store.put(("a",), f"same{number}", {"text": "The queue holds a hundred jobs", "n": number})
    found = store.search(("a",), query="how do I reach the staging server?")
    assert found[0].key == "vpn"
    assert len(set(keys(found))) == 7
    assert found[0].score is not None
    assert sorted(keys(store.search(("a",), query="how many jobs are in the queue?", limit=5))) == [
        f"same{number}" for number in range(5)
    ]


def test_the_text_to_search_follows_the_index_of_an_item(memory: MemoryClient) -> None:
    store = MemoryStore(memory, fields=["summary"])
    store.put(("a",), "own", {"summary": "Deploys need the VPN", "note": "cats"})
    store.put(("a",), "named", {"summary": "nothing", "notes": [{"text": "Cats sleep"}]}, index=["notes[*].text"])
    store.put(("a",), "unsearched", {"summary": "cats and dogs"}, index=False)
    assert {record.text for record in memory.list().records} == {"Deploys need the VPN", "Cats sleep", "unsearched"}
    found = store.search(("a",), query="cats")
    assert [(item.key, item.score is None) for item in found] == [
        ("named", False),
        ("own", False),
        ("unsearched", True),
    ]


def test_namespaces_are_listed_by_prefix_suffix_wildcard_and_depth(store: MemoryStore) -> None:
    spaces = [
        ("a", "b", "c"),
        ("a", "b", "d", "e"),
        ("a", "b", "d", "i"),
        ("a", "b", "f"),
        ("a", "c", "f"),
        ("b", "a", "f"),
        ("users", "123"),
        ("users", "456", "settings"),
        ("tenant", "a_%"),
    ]
    for space in spaces:
        store.put(space, "id", {"data": "x"})
    assert store.list_namespaces() == sorted(spaces)
    assert store.list_namespaces(prefix=("a", "b")) == sorted(spaces[:4])
    assert store.list_namespaces(suffix=("f",)) == sorted(spaces[3:6])
    assert store.list_namespaces(prefix=("a",), suffix=("f",)) == sorted(spaces[3:5])
    assert store.list_namespaces(prefix=("users", "*")) == sorted(spaces[6:8])
    assert store.list_namespaces(suffix=("*", "settings")) == [spaces[7]]
    assert store.list_namespaces(prefix=("a", "b"), max_depth=3) == [spaces[0], ("a", "b", "d"), spaces[3]]
    assert store.list_namespaces(limit=2, offset=1) == sorted(spaces)[1:3]
    assert [item.namespace for item in store.search(("tenant", "a_%"))] == [("tenant", "a_%")]


@pytest.mark.parametrize("space", [(), ("",), ("a.b",), ("langgraph", "x"), ("a", 1)])
def test_invalid_namespaces_are_refused(store: MemoryStore, space: Any) -> None:
    with pytest.raises(InvalidNamespaceError):
        store.put(space, "k", {"v": 1})
    if space and space[0] != "langgraph":
        with pytest.raises(InvalidNamespaceError):
            store.batch([PutOp(space, "k", {"v": 1})])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, r"value\.at.*datetime"),
        ({"list": [1, {"tags": {"a"}}]}, r"value\.list\[1\]\.tags.*set"),
        ({"raw": b"x"}, r"value\.raw.*bytes"),
        ({"x": float("nan")}, r"value\.x.*finite"),
        ({"n": 2**70}, r"value\.n.*64 bits"),
        ({1: "x"}, "value"),
        ({"f": print}, r"value\.f"),
    ],
)
def test_a_value_that_is_no_json_is_refused_with_its_path_and_nothing_is_written(
    store: MemoryStore, value: dict[Any, Any], path: str
) -> None:
    with pytest.raises(InvalidInputError, match=path):
        store.batch([PutOp(("a",), "good", {"v": 1}), PutOp(("a",), "bad", value)])
    assert store.search(()) == []


def test_a_time_to_live_is_refused(store: MemoryStore) -> None:
    with pytest.raises(NotImplementedError, match="TTL"):
        store.put(("a",), "k", {"v": 1}, ttl=5)


def test_other_clients_see_a_put_at_once_and_other_users_never(store: MemoryStore, user: str) -> None:
    with MemoryClient(user) as same, MemoryClient(f"{user}-other") as other:
        for number in range(20):
            store.put(("a",), "k", {"n": number})
            assert MemoryStore(same).get(("a",), "k").value == {"n": number}  # type: ignore[union-attr]
            assert keys(MemoryStore(same).search(("a",), filter={"n": number})) == ["k"]
        assert MemoryStore(other).get(("a",), "k") is None


def test_loops_threads_and_forks_use_one_store(store: MemoryStore) -> None:
    async def work(name: str) -> None:
        await asyncio.gather(*(store.aput(("a",), f"{name}{number}", {"n": number}) for number in range(5)))

    asyncio.run(work("first"))
    threads = [threading.Thread(target=asyncio.run, args=(work(name),)) for name in ("second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        try:
            store.put(("a",), "forked", {"n": len(store.search(("a",), limit=100))})
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get(("a",), "forked").value == {"n": 15}  # type: ignore[union-attr]


def test_a_cancelled_batch_is_written_whole(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on, done = threading.Event(), threading.Event(), threading.Event()
    batch = MemoryStore.batch

    def slow_batch(store: MemoryStore, ops: Any) -> Any:
        begun.set()
        may_go_on.wait()
        results = batch(store, ops)
        done.set()
        return results

    async def cancel() -> None:
        ops = [PutOp(("a",), str(number), {"n": number}) for number in range(3)]
        task = asyncio.create_task(store.abatch(ops))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await asyncio.to_thread(done.wait)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "batch", slow_batch)
        asyncio.run(cancel())
    assert sorted(keys(store.search(("a",)))) == ["0", "1", "2"]


def test_without_a_daemon_the_error_says_how_to_start_one(tmp_path: object) -> None:
    with pytest.raises(UnavailableError, match="memory-agent serve"):
        MemoryStore(MemoryClient("alice", data_dir=str(tmp_path))).get(("a",), "k")


class State(MessagesState):
    memories: str


def graph_of(memory: MemoryClient, work: Callable[..., Any], checkpointer: Any = None) -> Any:
    graph = StateGraph(State)
    graph.add_node("recall", recall_node(memory))
    graph.add_node("work", work)
    graph.add_edge(START, "recall")
    graph.add_edge("recall", "work")
    graph.add_edge("work", END)
    return graph.compile(checkpointer=checkpointer, store=MemoryStore(memory))


ASKED = {"messages": [("user", "deploy the shop to staging")]}


@pytest.mark.parametrize("is_async", [False, True])
def test_recalls_of_a_graph_belong_to_its_run(memory: MemoryClient, is_async: bool) -> None:
    memory.remember("Staging needs the VPN")
    model = FakeListChatModel(responses=["Deployed through the VPN"])
    seen = []

    def work(state: State) -> dict[str, Any]:
        seen.append(state["memories"])
        return {"messages": [model.invoke(state["messages"])]}

    config: Any = {"callbacks": [RunOutcomes(memory)], "configurable": {"thread_id": "t1"}}
    graph = graph_of(memory, work, InMemorySaver())
    _ = asyncio.run(graph.ainvoke(ASKED, config)) if is_async else graph.invoke(ASKED, config)
    (run,) = memory.runs.list()
    assert "Staging needs the VPN" in seen[0]
    assert (run.objective, run.outcome, run.session_id, len(run.recall_ids)) == (
        "deploy the shop to staging",
        "completed",
        "t1",
        1,
    )


def test_searches_of_a_node_belong_to_the_run_and_those_after_it_do_not(memory: MemoryClient) -> None:
    store = MemoryStore(memory)
    store.put(("a",), "k", {"text": "Staging needs the VPN"})

    def work(state: State) -> dict[str, Any]:
        store.search(("a",), query="what does staging need?")
        return {"messages": [("ai", "done")]}

    graph_of(memory, work).invoke(ASKED, {"callbacks": [RunOutcomes(memory)]})
    store.search(("a",), query="what does staging need?")
    (run,) = memory.runs.list()
    assert len(run.recall_ids) == 2


def test_failure_and_cancellation_end_the_run(memory: MemoryClient) -> None:
    def fail(state: State) -> None:
        raise ZeroDivisionError

    async def hang(state: State) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async def cancel(graph: Any) -> None:
        task = asyncio.create_task(graph.ainvoke(ASKED, config))
        await hanging.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    config: Any = {"callbacks": [RunOutcomes(memory)], "configurable": {"thread_id": "t"}}
    with pytest.raises(ZeroDivisionError):
        graph_of(memory, fail).invoke(ASKED, config)
    hanging = asyncio.Event()
    asyncio.run(cancel(graph_of(memory, hang)))
    assert [(run.outcome, run.is_cancelled) for run in memory.runs.list()] == [(None, True), ("failed", False)]


def test_an_interrupted_graph_continues_its_run_when_it_is_resumed(memory: MemoryClient) -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"messages": [("ai", interrupt("which shop?"))]}

    graph = graph_of(memory, ask, InMemorySaver())
    for shop in ("the first", "the second"):
        config: Any = {"callbacks": [RunOutcomes(memory)], "configurable": {"thread_id": shop}}
        graph.invoke(ASKED, config)
    assert [run.state for run in memory.runs.list()] == ["open", "open"]
    graph.invoke(
        Command(resume="the first"), {"callbacks": [RunOutcomes(memory)], "configurable": {"thread_id": "the first"}}
    )
    assert [(run.session_id, run.state, run.outcome) for run in memory.runs.list()] == [
        ("the second", "open", None),
        ("the first", "ended", "completed"),
    ]


def test_docstring_examples_run(run_docstrings: Callable[..., None]) -> None:
    run_docstrings(langgraph)


def test_the_example_runs(example: Callable[..., str]) -> None:
    model = FakeListChatModel(responses=["Connected to the VPN, then deployed."])
    assert example(model=model) == "completed\n"
