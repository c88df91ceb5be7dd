"""`make demo`: a training job on a real Kubernetes, a node drained under it, and the proof that nothing was lost.

Everything is real: cluster, S3 server, data, model, `kubectl drain`. The proof is read from the bucket, where each rank
has recorded the samples it found in its batches, and compared with an undisturbed training. The cluster stays up for
looking around; `make demo-down` removes it.
"""
