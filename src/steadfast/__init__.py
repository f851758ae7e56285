"""steadfast: class-incremental learning whose features stay put."""

__version__ = "0.1.0"
