"""Complete erasure: what was forgotten leaves every file, survives a crash half way, and there is a receipt."""
