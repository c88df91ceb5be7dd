"""Scenarios that concern the one operator, and so all others: each has the cluster to itself."""
