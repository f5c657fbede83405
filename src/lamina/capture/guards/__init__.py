"""How a guard of Lamina's own comes among those that Dynamo makes of a graph."""
