"""Objects whose end the program notices, by ``__del__`` or a weak reference, which a trace does not."""
