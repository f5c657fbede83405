"""Whether what a call reads is what it was, asked in machine code where there is a compiler."""
