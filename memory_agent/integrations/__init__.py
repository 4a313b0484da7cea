"""Connects coding agents and editors: through their settings files, or a plugin for those that have plugins."""
