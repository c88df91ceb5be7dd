"""From the watch and from live reads to the Snapshot that `decide` reads.

parse      raw objects -> values; pure
containers which container of a pod says what; pure
roots      where a job writes to; pure
records    what is kept of an object; pure
tombs      what is remembered of deleted objects
cache      the newest records, indexed
live       what is read live, and when
observe    cache and live reads -> Snapshot
"""
