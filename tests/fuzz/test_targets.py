"""Test every reader of bytes with hostile bytes: only our errors are raised, and calls and memory are bounded.

The bounds are proportional to the size of the input. Inputs that have failed before come first. `make fuzz` searches
for longer.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import LimitError, within_limits
from mutations import mutate
from target import CORPUS, Target
from targets import TARGETS

EXAMPLES = 25
FEW = {"signals": 6, "dates": 20, "context-block": 12, "event-mapper": 15}
FEW |= {"columns-file": 12, "encrypted-columns": 12, "owner-pairs": 10, "restored-backup": 10}
FEW |= {"record-marker": 12, "journal-marker": 6}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """Each target, after its samples have run once, so that initialisation at first use is not counted."""
    found = TARGETS[request.param]
    for sample in found.samples:
        found.run(sample)
    return found


def test_inputs_that_failed_once_are_read_or_refused(target: Target) -> None:
    for path in target.corpus:
        within_limits(target.run, path.read_bytes())


def test_the_corpus_has_only_files_of_targets_that_exist() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


@pytest.mark.timeout(60)
def test_no_input_raises_anything_but_our_errors(target: Target) -> None:
    mutated = st.integers(0, 2**48).map(lambda seed: mutate(target.samples, target.form, seed))

    @settings(
        max_examples=FEW.get(target.name, EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated | mutated | mutated | st.binary(max_size=200))
    def read(data: bytes) -> None:
        within_limits(target.run, data)

    read()


def test_an_input_that_takes_too_many_calls_or_too_much_memory_is_noticed() -> None:
    with pytest.raises(LimitError, match="calls"):
        within_limits(lambda data: [len(data) for _ in range(100_000)], b"")
    with pytest.raises(LimitError, match="bytes"):
        within_limits(lambda data: bytes(1 << 24), b"")


def test_an_exception_of_a_target_is_a_finding() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        within_limits(broken, b"x")
