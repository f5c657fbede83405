"""What Dynamo's traces take to be otherwise than it is, set right where Lamina compiles."""
