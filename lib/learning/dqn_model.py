"""The networks: the book's Nature DQN, and the small dueling network of 07, 08 and 10."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import conv2d


class DQN(nn.Module):
    """The convolutional Q-network of "Human-level control through deep reinforcement learning".

    Source: Mnih et al., Nature 518 (2015), extended data table 1 and methods.

    Args:
        input_shape: shape of one observation, (stack, height, width).
        channels: channels of the three convolutions.
        hidden: units of the hidden layer.
        first_kernel: height and width of the first kernel; its stride is half of that.

    Attributes:
        arguments: these arguments, from which a checkpoint rebuilds the network.
        temperature: for ``agents.sample_softmax``, which chooses actions.
    """

    temperature = 0.0  # greedy

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        n_actions: int,
        channels: tuple[int, int, int] = (32, 64, 64),
        hidden: int = 512,
        first_kernel: int = 8,
    ) -> None:
        super().__init__()
        shapes = {"input_shape": tuple(input_shape), "n_actions": int(n_actions)}
        size = {"channels": channels, "hidden": hidden, "first_kernel": first_kernel}
        self.arguments: dict[str, Any] = shapes | size
        _, height, width = input_shape
        if min(height, width) < (least := 9 * first_kernel // 2):  # for three convolutions
            small = f"a picture of {height}x{width} pixels is too small"
            raise ValueError(f"{small}: the network needs {least}x{least} or more")
        first, second, third = channels
        self.conv = nn.Sequential(
            nn.Conv2d(input_shape[0], first, first_kernel, stride=first_kernel // 2),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, second, kernel_size=4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(second, third, kernel_size=3, stride=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        with torch.no_grad():
            n_features = self.conv(torch.zeros(1, *input_shape)).shape[1]
        self.fc = nn.Sequential(
            nn.Linear(n_features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, n_actions)
        )
        # Channels-last changes only the order in memory: with the channels innermost, the
        # convolutions of cuDNN and oneDNN read whole vectors.
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Estimate action values, (batch, actions), in the weights' or autocast's dtype.

        ``states`` are uint8 (batch, stack, height, width), 0 to 255.
        """
        return self.fc(self.conv(self.pixels(states)))

    def pixels(self, states: torch.Tensor) -> torch.Tensor:
        """Scale states to [0, 1] and subtract each state's mean: the input of the convolutions.

        The background adds a constant to each unit's input in every state. If it is not subtracted,
        Adam's first updates may leave a layer of dead ReLUs.
        """
        # Make a copy, converted and reordered in one pass; scale and centre it in place.
        dtype = next(self.conv.parameters()).dtype
        same = states.dtype == dtype
        pixels = states.to(dtype, copy=same, memory_format=torch.channels_last).mul_(1 / 255)
        return pixels.sub_(pixels.mean((1, 2, 3), keepdim=True))  # takes 1 to 2 % of an update


class DuelingDQN(DQN):
    """A small dueling Q-network with a normalised hidden layer.

    Source: Gallici et al., arXiv:2407.04811, for the normalisation (Ba et al., arXiv:1607.06450);
    Wang et al., arXiv:1511.06581, for the dueling heads: the value of a state and the advantages of
    its actions, so that learning about one action helps all.

    Its input has half the resolution, so its first kernel of 4x4 sees as much of the picture as
    DQN's, with a quarter of the operations.
    """

    def __init__(
        self, input_shape: tuple[int, int, int], n_actions: int, temperature: float = 0.0
    ) -> None:
        super().__init__(input_shape, 1 + n_actions, (16, 16, 16), hidden=256, first_kernel=4)
        self.arguments = {"input_shape": tuple(input_shape), "n_actions": int(n_actions)}
        self.temperature = self.arguments["temperature"] = temperature
        second = BlockConv2d(16, 16, kernel_size=4, stride=2)
        self.conv[2] = second.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.fc.insert(1, nn.LayerNorm(256))  # so the last layer is fc.3
        initialise(self.conv)
        initialise(self.fc[0])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Estimate action values, (batch, actions), in the dtype of the last layer's weights.

        That layer may be more precise than the others, because the values of Pong's actions often
        differ by less than bfloat16 can show.
        """
        planes = self.conv[:-1](self.pixels(states))
        # Flatten in memory order: any other order needs a copy, a tenth of an update's time.
        hidden = self.fc[:-1](planes.permute(0, 2, 3, 1).flatten(1))
        heads = self.fc[-1](hidden.to(self.fc[-1].weight.dtype))
        value, advantages = heads[:, :1], heads[:, 1:]
        return value + advantages - advantages.mean(1, keepdim=True)


def initialise(layers: nn.Module) -> None:
    """Draw He's initial weights for ReLUs, in place; biases become 0.

    Source: He et al., arXiv:1502.01852.
    """
    for name, parameter in layers.named_parameters():
        if name.endswith("weight"):
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
        else:
            nn.init.zeros_(parameter)


class BlockConv2d(nn.Conv2d):
    """A convolution of stride 2 and an even kernel, computed as one of stride 1 over 2x2 blocks.

    The sums are the same, but on a CPU the gradient of the input takes half as long: 0.17 instead
    of 0.36 ms for 64 states on two cores.
    """

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return super().forward(pixels)
        height, width = pixels.shape[2:]
        # With an odd height or width, the kernel does not reach the last row or column.
        pixels = pixels[..., : height // 2 * 2, : width // 2 * 2]
        return conv2d(blocks(pixels), blocks(self.weight), self.bias)


def blocks(pixels: torch.Tensor) -> torch.Tensor:
    """Turn 2x2 blocks of pixels into channels: (n, c, h, w) to (n, 4 c, h / 2, w / 2)."""
    # pixel_unshuffle would put a channel's four pixels next to each other. Then nothing could be
    # copied in whole vectors, and an update would take 1.6 times as long.
    n, channels, height, width = pixels.shape
    parts = pixels.view(n, channels, height // 2, 2, width // 2, 2).permute(0, 3, 5, 1, 2, 4)
    parts = parts.reshape(n, 4 * channels, height // 2, width // 2)
    return parts.contiguous(memory_format=torch.channels_last)


NETWORKS: dict[str, type[DQN]] = {network.__name__: network for network in (DQN, DuelingDQN)}
