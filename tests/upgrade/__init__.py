"""The version before this one, as it was built, beside today's: an upgrade and a rollback lose nothing.

previous/           wheel (`pip wheel --no-deps .`), chart and CRD of that version, replaced as a whole by the next one
previous_wire.py    runs on that wheel: reads and writes what operator and agents say to each other
train.py            runs on either: a small training that can be interrupted
"""
