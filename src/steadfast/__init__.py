"""steadfast: class-incremental learning whose features stay put."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`steadfast.IncrementalClassifier`, imported when asked for, so that `import steadfast` stays light."""
    if name == "IncrementalClassifier":
        from .estimator import IncrementalClassifier

        return IncrementalClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
