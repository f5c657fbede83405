"""The sweep's parts: where programs come from, how they are measured, what is kept and what is told of them."""
