"""What Dynamo does with each function, heard of where it compiles for Lamina."""
