"""The ways into a daemon: each carries requests to the one reception, and replies back."""
