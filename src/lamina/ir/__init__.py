"""The compiler's values: the op table, index expressions, loop programs and plans."""
