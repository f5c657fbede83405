"""What a graph raises after the program has changed objects of Python's, which Dynamo does after the graph."""
