"""Gradients within a captured call: ``backward``, what ``.grad`` holds, and the hooks that may run then."""
