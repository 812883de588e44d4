"""What a request is before it is sent, and what an answer stands for.

- ``validation``: what callers pass becomes a checked request, or an error that names field and row;
  ``json_snapshot`` copies the JSON values in it.
- ``schemas``: JSON schemas made of classes.
- ``fingerprint``: a key that equal requests share.
- ``tokens``: how many tokens a request and its answer are expected to take.
- ``structured``: JSON recovered from an answer, checked against the schema that was asked for.
- ``keywords``: the keywords of schemas whose check has to be bounded, and ``patterns`` what they match with.
"""
