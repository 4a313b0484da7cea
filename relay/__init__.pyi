# ruff: noqa: F403
"""The names of `__init__.py`, for type checkers, which cannot see lazy imports."""

from relay.__main__ import *
from relay.access import *
from relay.broker import *
from relay.config import *
from relay.crypto import *
from relay.decoding import described as described
from relay.errors import *
from relay.event import *
from relay.histogram import *
from relay.intake.masking import *
from relay.intake.personal_numbers import *
from relay.intake.table_tail import *
from relay.journal import *
from relay.net import *
from relay.program import *
from relay.publishing.delivery import *
from relay.publishing.publisher import *
from relay.publishing.submission import *
from relay.subscriber import *
from relay.validation import *
from relay.wire import *
