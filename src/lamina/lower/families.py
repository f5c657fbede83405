"""Imports every rule file, so that the table is complete once this module is loaded."""

from __future__ import annotations

from lamina.lower import pointwise, reduction, views

__all__ = ["LOADED"]

LOADED = (pointwise, reduction, views)
"""The rule files."""
