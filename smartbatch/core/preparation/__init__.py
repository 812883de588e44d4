"""Checks of requests before they are sent, and of structured answers.

- ``preparer``: the requests of one client, from single prompts, lists and tables.
- ``validation``: checked requests and parameters; errors name field and row.
- ``chat_turns``: checked chat messages, tool calls and tools.
- ``fingerprint``: a key that identical requests share.
- ``tokens``, ``calibration`` and ``answer_length``: the expected tokens of a request and its answer.
- ``class_schemas`` and ``json_schemas``: schemas made from classes, and schemas given as dictionaries.
- ``json_recovery`` and ``structured``: the JSON in an answer, checked against the schema.
"""
