"""The command `perdure`.

start      the entry point, before any slow import
main       the commands
describe   runs a script up to its first batch, and reads its session's description
export     writes an object of a commit for programs without Perdure
importing  makes a root from another program's file
progress   a bar on stderr for long commands
"""
