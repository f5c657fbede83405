"""The classes of operators, which torch (2.11 to 2.13) has under a private name only."""

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = ["HigherOrderOperator", "OpOverload", "OpOverloadPacket"]
