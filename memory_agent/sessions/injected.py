"""Removes what clients and their hooks put into prompts and outputs. Imports `re` alone, since hooks start with it."""

from __future__ import annotations

import re

_REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.DOTALL)
_HOOK = re.compile(r"<hook_context>.*?(?:</hook_context>|\Z)", re.DOTALL)


def without_reminders(text: str) -> str:
    """Return a text of Claude Code without the reminders in it."""
    return _REMINDER.sub("", text).strip()


def without_hook_context(text: str) -> str:
    """Return a text of Gemini CLI without the context that its hooks added."""
    return _HOOK.sub("", text).strip()
