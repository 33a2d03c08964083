"""Datasets: one file each, their annotations and downloads."""
