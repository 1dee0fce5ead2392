"""Slow, independent truth for the filter: grids, samplers and textbook updates."""
