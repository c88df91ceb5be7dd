"""Perdure's operator."""
