"""Python numbers that stand for many, where torch's arithmetic of them is not Python's."""
