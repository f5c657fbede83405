"""Capture with the sizes of a call, where symbols for them would take too long."""
