"""From the watch and from live LISTs to the Snapshot that `decide` reads.

parse      raw objects -> values; pure
cache      the newest object that the watch or a LIST has told, and what was last seen of deleted pods
observe    cache and live LISTs -> Snapshot
"""
