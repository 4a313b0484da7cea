"""What an event means to a memory: which events are kept (`table`), their text (`payloads`, `language`), what they say
about an outcome (`verdicts`) or a run (`runs`), and the resulting record (`reader`).
"""
