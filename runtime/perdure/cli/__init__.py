"""The command `perdure`.

start     the entry point, before any slow import
main      the commands
describe  runs a script up to its first batch, and reads its session's description
"""
