"""Recalls that nobody asks for: which events cause one, what is asked for them, and for whom the answer is written."""
