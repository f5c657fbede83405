"""Frames as Dynamo compiles them: its callback, and when Python runs a frame instead."""
