"""What explaining uses of torch under private names; as read in 2.11 to 2.13."""

from torch.utils._pytree import tree_leaves

__all__ = ["tree_leaves"]
