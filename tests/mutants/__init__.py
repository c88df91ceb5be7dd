"""Bugs planted one at a time: each must be found by the simulation or by the unit tests.

mutant      one changed place in the code of one symbol
catalogue   bugs of the kinds that were really made, or that tests once did not notice
mechanical  bugs drawn by seed from the code itself
judge       runs the simulation and the unit tests over a copy
record      verdicts on a file, for a run that goes on where another was cut
__main__    plants them all, and prints the table: what was planted, and who has found it
"""
