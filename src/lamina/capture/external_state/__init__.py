"""What a captured graph read of the world outside and Dynamo does not guard on."""
