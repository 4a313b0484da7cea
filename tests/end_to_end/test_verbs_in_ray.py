"""Test that every verb behaves the same from inside Ray as through a client of the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import DaemonProcess, environment

pytestmark = pytest.mark.ray
EXAMPLES = Path(__file__).parent.parent / "contracts"

TELL_BOTH = """
import json, sys
from operator import attrgetter
sys.path.insert(0, sys.argv[2])
from verb_examples import BAD, Story
from memory_agent import ActorMemoryProvider, MemoryClient, join_ray
from memory_agent.errors import InvalidInputError
join_ray(sys.argv[1], namespace="somebody-else")

def tell(made, user_id):
    with made as asker:
        story = Story(lambda method, *arguments, **named: attrgetter(method)(asker)(*arguments, **named))
        story.tell()
        refused = []
        for method, arguments, _ in BAD:
            try:
                story.ask(method, **arguments)
            except InvalidInputError as error:
                refused.append(error.field)
        return story.normal(user_id), refused

of_client = tell(MemoryClient("user-carl", data_dir=sys.argv[1]), "user-carl")
in_ray = tell(ActorMemoryProvider("user-rita", data_dir=sys.argv[1]), "user-rita")
print(json.dumps([of_client, in_ray]))
"""


def test_every_verb_means_the_same_inside_ray(daemon: DaemonProcess) -> None:
    command = [sys.executable, "-c", TELL_BOTH, str(daemon.data_dir), str(EXAMPLES)]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert result.stdout, result.stderr
    of_client, in_ray = json.loads(result.stdout.splitlines()[-1])
    assert len(in_ray[0]) > 20
    assert in_ray == of_client
