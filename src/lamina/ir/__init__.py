"""The compiler's values: the op table, index expressions, loop programs and plans.

The printers are loaded with them, so that every program and plan prints as text that can be read back.
"""

from lamina.ir import loops_print, plan_print

__all__ = ["loops_print", "plan_print"]
