"""How fast a job trains at other sizes and with other batches: arithmetic on what it has measured. Pure: no torch, no
clock, no I/O, and nothing is drawn at random, so that all ranks and the operator compute the same.

Goodput is throughput times statistical efficiency: samples per second, each counted by what it wins (Pollux, Qiao et
al., OSDI '21). M is a step's batch over all ranks, M0 the script's own, phi the noise scale of its gradient, in
samples.

| Module | What it computes |
|---|---|
| `speed` | the time of a step, by nodes, ranks, samples at once and accumulation |
| `fitting` | that time from measured steps |
| `batch` | the batch of the largest goodput, and whether a change to it is worth it |
| `rates` | how the learning rate follows the batch |
| `hints` | what a number of ranks would win, of the hints that a job has reported |

Only `fitting` needs numpy: the operator, which has none, takes the others.
"""
