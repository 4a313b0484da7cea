"""Complete erasure: nothing is left in any file, a crash half-way is recovered from, and there is a receipt."""
