"""Experiments: one file each, a frozen config and `main(config) -> dict`."""
