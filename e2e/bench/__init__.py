"""Measurements, printed as tables and kept as one JSON file each under build/bench/. Nothing here passes or fails.

`python -m e2e.bench [step] [moves] [scale]`: what each figure means is in docs/benchmarks.md.
"""
