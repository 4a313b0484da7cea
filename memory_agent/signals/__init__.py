"""Interprets events: which to keep (`table`), their text (`payloads`, `language`), the outcome (`verdicts`) and the run
(`runs`) they report, and the memory record they become (`reader`).
"""
