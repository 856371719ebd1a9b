"""Errors and exit codes, devices, distributed processes and memory: used by every other package."""
