"""`make gpu-card`: what Perdure does on this machine's accelerator, as one Markdown page. No cluster, no network.

training  the script that the trials train
trials    trains it, interrupts it, and changes its members
page      what the trials have found, as a page

No machine with a GPU has run it yet; a test runs the same code on CPUs.
"""
