"""Networks as everybody writes them, beside which ours are measured."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from holdfast.backbones.networks import LeNet
from holdfast.backbones.norms import BatchNorm2d


class UsualLeNet(LeNet):
    """The ReLU before the pooling, nothing in place: LeNet's values and gradients, bit for bit."""

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(relu(self.norm1(self.conv1(x))), 2)
        x = max_pool2d(relu(self.norm2(self.conv2(x))), 2)
        return relu(self.norm3(self.linear(x.flatten(1))))


def with_usual_norms(network: nn.Module) -> nn.Module:
    """A copy with PyTorch's own batch norm in place of ours: the same values and gradients, but for rounding."""
    network = copy.deepcopy(network)
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, BatchNorm2d):
                norm = nn.BatchNorm2d(child.num_features, child.eps, child.momentum)
                norm.load_state_dict(child.state_dict())
                module.add_module(name, norm)
    return network
