"""Measurements on real inputs: what a memory finds of what it should, and how fast.

`locomo` reads the conversations, `publishing` brings them in through the relay, `trial` asks and counts, `metrics`
holds the figures. The inputs are no part of the project. What this does not do: tune anything.
"""
