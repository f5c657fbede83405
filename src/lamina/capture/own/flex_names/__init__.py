"""Torch's names of ``flex_attention``, which is interpreted."""
