"""Functions of torch that give something else where Dynamo traces them."""
