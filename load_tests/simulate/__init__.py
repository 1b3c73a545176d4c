"""The scheduler on a virtual clock: one simulated device, true costs that are known, arrivals that repeat."""
