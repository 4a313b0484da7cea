"""What was erased since a backup was made, erased again from what comes back, before that is in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from memory_agent.cli.access import open_files
from memory_agent.cli.failure import note
from memory_agent.cli.forget import erase_user
from memory_agent.cli.journal_files import erase_events, owners_of, ownership
from memory_agent.cli.options import Target
from memory_agent.erasure.history import History, fingerprint, read_history
from memory_agent.errors import InvalidInputError
from memory_agent.storage.folders import known_users, user_folder
from relay import Journal, journal_folder, read_event

_PAGE = 500
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class ErasingAgain:
    """Erases from the files of a restore, by the history of the data folder that they are for."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def from_all(self, stage: Path, made_at: datetime) -> dict[str, int]:
        """Erase from a whole data folder, its journal included; return how many memories of whom."""
        staged = replace(self._target, data_dir=stage)
        return self._counted(staged, staged, made_at)

    def from_user(self, stage: Path, made_at: datetime) -> dict[str, int]:
        """Erase from one user's files, which the journal here is going to follow.

        Raises `InvalidInputError` for a user that was erased since.
        """
        if self._history().since(made_at).is_everything:
            raise InvalidInputError("user", f"{self._target.user_id} was erased, whole, after this backup was made")
        return self._counted(replace(self._target, data_dir=stage), self._target, made_at)

    def from_nothing(self) -> dict[str, int]:
        """Let the journal here not bring back what was erased of a user who begins anew."""
        known = list(_events(self._target, self._history()))
        if known:
            with open_files(self._target) as memory:
                memory.erasure.erase_again(History(), _BEGINNING, known)
        return {self._target.user_id: len(known)} if known else {}

    def _history(self, user_id: str | None = None) -> History:
        user_id = user_id or self._target.user_id
        history = read_history(user_folder(self._target.data_dir, user_id), user_id)
        if history.unread:
            note(f"{history.unread} records of what was erased of {user_id} are damaged: what they named may be back")
        return history

    def _counted(self, staged: Target, followed: Target, made_at: datetime) -> dict[str, int]:
        """`followed` has the journal that the staged files will follow: their own, or that of the data folder."""
        counts = {}
        for user_id in list(known_users(staged.data_dir)):
            history = self._history(user_id)
            if not history.erasures:
                continue
            of_user = replace(staged, user_id=user_id)
            if history.since(made_at).is_everything:
                counts[user_id] = erase_user(of_user, dry_run=False).memories
            else:
                counts[user_id] = _erase(of_user, replace(followed, user_id=user_id), history, made_at)
        return {user_id: count for user_id, count in counts.items() if count}


def _erase(staged: Target, followed: Target, history: History, made_at: datetime) -> int:
    from memory_agent.erasure.journal import erasable
    from memory_agent.storage.owners import keys_of

    known = list(_events(followed, history))
    with open_files(staged) as memory:
        intents = memory.erasure.erase_again(history, made_at, known)
    for intent in intents:
        with owners_of(staged) as owners:
            is_owned = ownership(staged, owners, keys_of(intent.session_id, intent.run_ids))
            erase_events(staged, erasable(staged.user_id, intent), is_owned, datetime.now(UTC), dry_run=False)
    return len({id_ for intent in intents for id_ in intent.all_ids})


def _events(target: Target, history: History) -> Iterator[str]:
    """Go over the ids of the user's events that were erased and that the journal of the target holds."""
    folder = journal_folder(target.data_dir)
    wanted = history.events
    if not folder.exists() or not wanted:
        return
    with Journal.open(folder, target.settings.relay.journal, keys=target.keys) as journal:
        after = 0
        while page := journal.read(after, _PAGE, user_id=target.user_id):
            ids = (read_event(entry.data).event_id for entry in page)
            yield from (one for one in ids if fingerprint(target.user_id, one) in wanted)
            after = page[-1].seq
