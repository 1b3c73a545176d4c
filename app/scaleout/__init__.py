"""Several workers: one process a device, HAProxy in front, and which model lives on which worker.

Nothing below imports this package, and one worker alone never loads it.
"""
