"""Errors and exit codes, devices, processes, memory: what every room uses."""
