"""Connects the clients that people run: their configuration files, and a plugin for those that take one."""
