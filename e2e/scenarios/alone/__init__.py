"""Scenarios that concern the one operator, and so everybody: each has the cluster to itself."""
