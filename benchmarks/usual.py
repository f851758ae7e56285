"""Networks as everybody writes them, beside which ours are measured."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import max_pool2d, relu

from steadfast.backbones import LeNet


class UsualLeNet(LeNet):
    """The ReLU before the pooling, nothing in place: the same values and gradients as LeNet's, bit for bit."""

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(relu(self.norm2(self.conv2(x))), 2)
        return relu(self.norm3(self.linear(x.flatten(1))))
