"""Builds the Snapshot that `decide` reads from the watch and live reads.

parse            raw objects -> values; pure
containers       states of a pod's containers; pure
roots            where a job writes its checkpoints; pure
records          the kept facts of an object; pure
deleted_objects  memory of deleted objects
cache            the newest records, indexed
claims           deadlines of Karpenter's NodeClaims
live             live reads, and when they are due
observe          cache and live reads -> Snapshot
"""
