"""Classes that answer for themselves, and for what they make, in Python code that Dynamo does not trace."""
