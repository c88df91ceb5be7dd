"""Adapters for frameworks that have training loops of their own, one module for each.

An adapter is imported only by its name (`import perdure.adapters.hf`). No other part of Perdure depends on it.
"""
