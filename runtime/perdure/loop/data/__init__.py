"""Which sample goes where, and the loader that a script iterates.

source       hands out an epoch's batches and keeps its position; the others are kinds of it, or parts
loader       the loader for training, on torch's DataLoader
evaluating   the loader for evaluations
reading      a loader whose epochs take a number of samples
sampling     which rank gets which sample; pure
permutation  an order of the samples that is computed where it is needed
batch_share  which share of a batch a rank gets in a device mesh
evenness     whether the ranks have equal shares
fingerprint  hashes of a few samples: whether a run reads the same data
changing     what a script could change of a dataset
randomness   generators that a dataset keeps for itself
holders      constructs around a source that make a resumed run differ, such as itertools.cycle
"""
