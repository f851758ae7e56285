"""Checks for plug-ins: call them in the tests of your own package, and your method, head, backbone or data set keeps
the promises that holdfast makes of its own.

    from holdfast.testing import check_method

    def test_my_method():
        check_method("my-pull", power=3.0)

Each check raises `CheckFailed`, an AssertionError that names the promise and the way to keep it. Our own tests call
them over every registry.
"""

from .backbones import check_backbone
from .datasets import check_dataset
from .failing import CheckFailed
from .heads import check_head
from .methods import check_method

__all__ = ["CheckFailed", "check_backbone", "check_dataset", "check_head", "check_method"]
