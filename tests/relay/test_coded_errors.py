"""Test the error classes: one root, fields declared once, and arguments that rebuild an error in another process."""

from __future__ import annotations

import pickle

import pytest

import memory_agent.errors
import relay.errors
from relay.errors import CodedError, MemoryAgentError, RelayError

EVERY = sorted(
    {*memory_agent.errors.ERRORS.values(), *relay.errors.ERRORS.values()},
    key=lambda kind: (kind.__name__, kind.__module__),
)


def made(kind: type[CodedError]) -> CodedError:
    names = kind.__match_args__
    return kind(*(f"the {name}" for name in names)) if names else kind("what happened")


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_error_is_the_same_in_another_process(kind: type[CodedError]) -> None:
    error = made(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.args, str(again), vars(again)) == (error.args, str(error), vars(error))
    assert type(error)(*error.args).args == error.args


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_arguments_of_an_error_are_its_fields(kind: type[CodedError]) -> None:
    error = made(kind)
    assert error.args == tuple(vars(error).values()) or not kind.__match_args__
    assert "{" not in str(error)


def test_defaults_and_keywords_are_replayed() -> None:
    assert relay.errors.ScopeMissingError("admin").args == ("admin", "")
    assert relay.errors.JournalFullError(path="journal", limit_bytes=8).args == ("journal", 8)
    assert (
        str(relay.errors.ScopeMissingError("admin", "ci"))
        == "the key ci does not have the scope admin (keys create --scope admin)"
    )


def test_both_roots_catch_what_both_packages_raise() -> None:
    shared = {kind.__name__ for kind in EVERY if issubclass(kind, RelayError) and issubclass(kind, MemoryAgentError)}
    assert shared == {
        "EncryptionKeyMissingError",
        "ProtocolError",
        "ScopeMissingError",
        "UnauthorizedError",
        "UserNotAllowedError",
    }


def test_a_message_may_hold_braces() -> None:
    assert str(relay.errors.MalformedEventError("payload", "{is} not {0}")) == "payload: {is} not {0}"
