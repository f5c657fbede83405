"""Python callable to FX graph of torch calls with guards."""
