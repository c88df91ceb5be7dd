"""Frameworks with loops of their own, driven so that a Session's promises hold: one module for each.

None is imported before it is asked for by its name (`import perdure.adapters.hf`), and nothing else of Perdure knows
that they exist.
"""
