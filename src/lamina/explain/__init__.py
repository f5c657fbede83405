"""Reports made from a `Record`: text, dumps, bisection and minimised reproductions."""
