"""Functions of torch's that only ask, and those that function modes see."""
