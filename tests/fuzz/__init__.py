"""Fuzz targets for the Python half, and the seeds of all targets."""
