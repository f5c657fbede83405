"""Functions that switch modes of the thread in ways that Dynamo does not follow."""
