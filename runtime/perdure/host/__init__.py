"""What the machine and the container tell of themselves: no torch, no state.

cgroup       the memory limit of this container, and what it uses
memory       how much a process may still take
parent       a child ends with its parent
process_age  when this process was made
descriptors  keeps files away from the standard streams' numbers
threads      threads, what they wait for, and their clock
"""
