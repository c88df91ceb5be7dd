"""Measures, in the trainer, what a choice of the global batch and of the number of ranks needs.

measurements    both of one process, as the session tells them of its steps; `measure` turns them on
speed_profile   step times by nodes, ranks, micro-batch and accumulation
noise_meter     the gradient noise scale: moving averages, each rank's part of which the others hear with every check
two_equations   what the squared norms of the parts' gradients and of their mean say about noise and signal: pure
gradient_norms  takes these norms, where ranks average their gradients and where one rank is alone

Nothing here is made, registered or called unless a run is to be measured.
"""
