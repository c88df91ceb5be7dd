"""Where training stands: steps, epoch loops, each loader's place, sums, and what ends a loop.

Does no I/O and talks to no other rank.

progress      steps, epoch loops, each loader's position
counting      the steps of a loop over samples of the script's own
datasets      what identifies the loaders' datasets
stopping      what ends an epoch loop
accumulating  sums over ranks and runs
totals        exact sums of floating-point numbers
"""
