"""All fuzz targets by name."""

from __future__ import annotations

import agent_targets
import bus_targets
import file_targets
from target import Target

TARGETS: dict[str, Target] = {
    target.name: target for module in (bus_targets, file_targets, agent_targets) for target in module.TARGETS
}
