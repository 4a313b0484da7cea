"""A document's query: title, headings, then changed and central sentences; its length is bounded even for 1 MB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from memory_agent.embedders import Embedder, open_embedder
from memory_agent.records.embedded import Embedding
from memory_agent.settings import EmbedderSettings
from memory_agent.triggers.document_query import Revisions, document_query, split_sentences

STAGING = (
    "The staging cluster can only be reached through the VPN. Deploys to staging hang while the VPN is off. "
    "The deploy script waits for the staging cluster to answer."
)
LUNCH = "Lunch in the canteen is served at noon on weekdays."
TEXT = f"# Deploying\n\n{STAGING} {LUNCH}\n\n## Troubleshooting\n\n- Check that the VPN of staging is connected first\n"


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = open_embedder(EmbedderSettings(allow_download=False))
    yield embedder
    embedder.close()


class Counting:
    """The real embedder, which counts the texts that it receives."""

    def __init__(self, embedder: Embedder) -> None:
        self.texts: list[str] = []
        self._embedder = embedder

    def __call__(self, texts: Sequence[str]) -> Embedding:
        self.texts += texts
        return self._embedder.embed_texts(texts)


def without_model(_texts: Sequence[str]) -> None:
    return None


def test_title_and_headings_come_first_and_the_central_sentences_follow(embedder: Embedder) -> None:
    lines = document_query("Runbook", TEXT, "d", Revisions(), embedder.embed_texts).splitlines()
    assert lines[:3] == ["Runbook", "Deploying", "Troubleshooting"]
    assert lines[3].startswith(("The staging", "Deploys"))
    assert len(lines) == 7
    assert LUNCH not in lines  # farthest from the centroid of the five sentences


def test_changed_sentences_precede_central_ones(embedder: Embedder) -> None:
    revisions = Revisions()
    document_query("", STAGING, "d", revisions, embedder.embed_texts)
    lines = document_query("", f"{STAGING} {LUNCH}", "d", revisions, embedder.embed_texts).splitlines()
    assert lines[0] == LUNCH
    assert document_query("", f"{LUNCH} {STAGING}", "new", revisions, embedder.embed_texts).splitlines()[0] != LUNCH


def test_a_document_without_a_name_counts_as_unchanged(embedder: Embedder) -> None:
    revisions = Revisions()
    first = document_query("", STAGING, "", revisions, embedder.embed_texts)
    assert document_query("", STAGING, "", revisions, embedder.embed_texts) == first


def test_only_the_latest_documents_are_remembered() -> None:
    revisions = Revisions()
    for number in range(17):
        assert revisions.changed(f"d-{number}", ["one"]) == []
    assert revisions.changed("d-16", ["one", "two"]) == [1]
    assert revisions.changed("d-0", ["two"]) == []


def test_without_a_model_the_first_sentences_are_taken() -> None:
    assert document_query("Runbook", STAGING, "d", Revisions(), without_model).splitlines() == [
        "Runbook",
        *split_sentences(STAGING),
    ]


def test_a_megabyte_takes_some_fifty_embeddings_and_a_bounded_query(embedder: Embedder) -> None:
    counting = Counting(embedder)
    revisions = Revisions()
    text = "\n".join(f"Service {number} restarts when its queue of {number} jobs is full." for number in range(17_000))
    assert len(text) > 1_000_000
    for change in ("", " Staging needs the VPN, or else its deploys hang."):
        query = document_query("Services", text + change, "d", revisions, counting)
        assert 0 < len(query) <= 1_500
    assert len(counting.texts) <= 2 * 48
    assert any("VPN" in line for line in query.splitlines()[:2])


@pytest.mark.parametrize("text", ["", "   \n\n ", "#", "word", "=====\n", "\x00", "🙂" * 10, "。" * 1_000])
def test_text_without_sentences_gives_an_empty_query(embedder: Embedder, text: str) -> None:
    assert document_query("", text, "d", Revisions(), embedder.embed_texts) == ""


def test_other_scripts_have_sentences_too() -> None:
    text = "预发布环境只能通过虚拟专用网络访问的集群才能部署成功。部署脚本会一直等待直到预发布集群响应请求为止。"
    assert len(split_sentences(text)) == 2


def test_text_without_sentence_ends_is_split() -> None:
    sentences = split_sentences("".join(f"word{number} " for number in range(100_000)))
    assert {len(sentence) for sentence in sentences[:-1]} <= {300, 299, 298}
    assert len(sentences) > 1_000
