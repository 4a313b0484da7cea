"""What users are answered of whom nothing is kept: that there is nothing, with nobody woken and no folder made for it.

A name that was mistyped costs no process (117 MB, measured) and leaves no folder. What is asked is checked all the
same, so that a wrong request is refused whoever asks. What this does not do: recalls in the name of a run, which wake
the user.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from ulid import ULID

from memory_agent.api import check_whole
from memory_agent.config import LearningSettings, RecallSettings
from memory_agent.learning.export import RunsExport, framed
from memory_agent.protocol import IdsParams, NoParams, RecallParams, decode, encode_result
from memory_agent.recall.query import make_query
from memory_agent.records import MemoryStats, RecallResult
from memory_agent.run_params import FeedbackParams, RunIdParams, RunListParams
from memory_agent.runs import MOST_RUNS, check_name
from memory_agent.storage.folders import user_folder
from memory_agent.trajectory import FeedbackReport, GateEvidence, SonaStatus
from sona.gate import Gate

_KEPT_RECALLS = 1_000
_PASS_ON = object()


class Strangers:
    """Answers for users who have no folder. Lives in one event loop."""

    def __init__(self, data_dir: Path, settings: RecallSettings, learning: LearningSettings) -> None:
        """Look for folders below `data_dir`; requests are checked by `settings`, as a memory does."""
        self._data_dir = data_dir
        self._settings = settings
        self._learning = learning
        self._recalls: OrderedDict[str, None] = OrderedDict()

    def answer(self, user_id: str, method: str, params: bytes) -> bytes | None:
        """Return the encoded reply, or None where the user is to be woken. Raises `InvalidInputError`."""
        if method == "feedback":
            return self._feedback(decode(params, FeedbackParams))
        answer = _READS.get(method)
        if answer is None or user_folder(self._data_dir, user_id).exists():
            return None
        params_type, reply = answer
        result = reply(self, user_id, decode(params, params_type))
        return None if result is _PASS_ON else encode_result(result)

    def _recall(self, _user_id: str, params: RecallParams) -> object:
        if params.by_run is not None:
            return _PASS_ON
        began_s, now = time.monotonic(), datetime.now(UTC)
        asked = make_query(
            params.query,
            params.top_k,
            params.filter,
            params.mode,
            None,
            {
                "profile": params.profile,
                "dates": params.dates,
                "reference_time": params.local_reference_time,
                "context_tokens": params.context_tokens,
            },
            self._settings,
            now,
        )
        result = RecallResult(
            recall_id=str(ULID()),
            memories=(),
            took_ms=(time.monotonic() - began_s) * 1000,
            context=None if asked.context_tokens is None else "",
        )
        self._recalls[result.recall_id] = None
        if len(self._recalls) > _KEPT_RECALLS:
            self._recalls.popitem(last=False)
        return result

    def _feedback(self, params: FeedbackParams) -> bytes | None:
        """Thank for feedback on a recall that showed nothing: there is nothing to credit, and no reason to fail."""
        if params.recall_id not in self._recalls or params.used:
            return None
        return encode_result(FeedbackReport(trajectory_id=params.recall_id))

    def _stats(self, user_id: str, _params: NoParams) -> MemoryStats:
        return MemoryStats(
            user_id=user_id,
            memories=0,
            by_kind={},
            by_source={},
            without_vector=0,
            events_kept=0,
            events_duplicate=0,
            events_dropped={},
            cursor=0,
            oldest=None,
            newest=None,
            model=None,
            index="exact",
            disk_bytes=0,
        )

    def _sona_status(self, user_id: str, _params: NoParams) -> SonaStatus:
        return SonaStatus(
            user_id=user_id,
            mode=self._learning.mode,
            gate=msgspec.convert(Gate().evidence(), GateEvidence, from_attributes=True),
            trajectories=0,
            credited=0,
            exemplars=0,
            memories_with_credit=0,
            served=dict.fromkeys(("baseline", "learned", "interleaved"), 0),
            gain=None,
            gain_low=None,
            gain_high=None,
            consolidated_at=None,
            state_bytes=0,
        )

    def _sona_export(self, _user_id: str, _params: NoParams) -> bytes:
        return framed(RunsExport({}, [], []))

    def _nothing(self, _user_id: str, _params: object) -> list[object]:
        return []

    def _no_runs(self, _user_id: str, params: RunListParams) -> list[object]:
        check_whole("limit", params.limit, MOST_RUNS)
        return []

    def _no_run(self, _user_id: str, params: RunIdParams) -> None:
        check_name("run_id", params.run_id)


_READS: dict[str, tuple[type[Any], Callable[[Strangers, str, Any], object]]] = {
    "recall": (RecallParams, Strangers._recall),
    "get": (IdsParams, Strangers._nothing),
    "stats": (NoParams, Strangers._stats),
    "run_get": (RunIdParams, Strangers._no_run),
    "run_list": (RunListParams, Strangers._no_runs),
    "sona_status": (NoParams, Strangers._sona_status),
    "sona_export": (NoParams, Strangers._sona_export),
}
