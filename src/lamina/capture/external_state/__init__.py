"""Guards on state outside of a captured function that its trace read and Dynamo does not guard on."""
