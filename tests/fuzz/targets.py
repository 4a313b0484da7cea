"""All fuzz targets by name."""

from __future__ import annotations

import agent_targets
import bus_targets
import encrypted_targets
import file_targets
import folder_targets
from target import Target

_MODULES = (bus_targets, file_targets, encrypted_targets, folder_targets, agent_targets)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
