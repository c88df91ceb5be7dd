"""How ranks find each other, agree to stop at one step, and tell how they ended.

rendezvous  the store and the process groups of a run
gloo        perdure.peers.Peers over a gloo group of its own
agree       the one-step-lagged agreement
pulse       whether the other ranks are still there, for a rank that is asked to leave
request     where a request to save and exit comes from
ending      what an exception means, and who is told
"""
