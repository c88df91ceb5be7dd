"""The command `perdure`.

start     where it begins, before anything is imported that can wait
main      the commands
describe  runs a script up to its first batch, and reads what its session has said of itself
"""
