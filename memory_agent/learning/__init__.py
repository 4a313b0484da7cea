"""Runs: what belongs to them, what they used, how they ended, and what the learner (`sona`) makes of it."""
