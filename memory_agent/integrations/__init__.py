"""Connects coding agents to a memory: edits their settings files so that they start our MCP server and call our hooks.

Read `clients` first, which lists the entries for each file, then `connection`, which writes and removes these entries.
`units` installs the daemon as a systemd or launchd service.
"""

from memory_agent.integrations.clients import CLIENTS, Command, Hooks, Scope, hook_launcher, this_program
from memory_agent.integrations.connection import Change, ChangedMeanwhileError, Connection
from memory_agent.integrations.installed_files import MARK, completion_path, install_file, remove_file
from memory_agent.integrations.json_text import JsonText, Syntax, UneditableError
from memory_agent.integrations.plugin import FOLDER, plugin_files
from memory_agent.integrations.toml_text import TomlText
from memory_agent.integrations.units import Service, system_unit, user_service

__all__ = [
    "CLIENTS",
    "FOLDER",
    "MARK",
    "Change",
    "ChangedMeanwhileError",
    "Command",
    "Connection",
    "Hooks",
    "JsonText",
    "Scope",
    "Service",
    "Syntax",
    "TomlText",
    "UneditableError",
    "completion_path",
    "hook_launcher",
    "install_file",
    "plugin_files",
    "remove_file",
    "system_unit",
    "this_program",
    "user_service",
]
