"""The hook through which Dynamo sees each frame that Python runs."""
