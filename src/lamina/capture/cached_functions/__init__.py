"""Functions behind ``functools.cache`` and ``functools.lru_cache``, which run once for equal arguments."""
