"""Write tests/support/peers/torch_sgd.npz: weights that PyTorch's SGD reaches under a schedule.

    python3.11 -m venv /tmp/pytorch
    /tmp/pytorch/bin/pip install -r tests/support/peers/requirements-pytorch-metric-learning.txt
    /tmp/pytorch/bin/python tests/support/peers/torch_sgd.py

The learning rate warms up linearly for WARMUP steps under a cosine that decays to 0 at STEPS. Only
the kernel has a weight decay. Only the bias has a factor on its learning rate.

Arrays, float64: `kernel` [3, 4] and `bias` [4], the weights before the first step;
`kernel_gradients` and `bias_gradients`, the gradients of each step; and for each case of CASES
`CASE/kernel` and `CASE/bias`, the weights after each step.
"""

import math
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_suffix(".npz")
RATE, STEPS, WARMUP = 0.05, 60, 15
DECAY, BIAS_FACTOR = 0.1, 0.25
CASES = {
    "momentum 0": {"momentum": 0.0},
    "momentum 0.9": {"momentum": 0.9},
    "momentum 0.9, Nesterov": {"momentum": 0.9, "nesterov": True},
    "momentum 0.99, Nesterov": {"momentum": 0.99, "nesterov": True},
}


def share(step):
    """Return the learning rate of a step as a share of the highest."""
    return min((step + 1) / WARMUP, (1 + math.cos(math.pi * step / STEPS)) / 2)


def main():
    """Train and write the file."""
    import torch

    rng = np.random.default_rng(0)
    arrays = {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
    for name in list(arrays):
        noise = rng.normal(size=(STEPS, *arrays[name].shape))
        arrays[f"{name}_gradients"] = 0.5 + noise
    for case, arguments in CASES.items():
        kernel = torch.tensor(arrays["kernel"], requires_grad=True)
        bias = torch.tensor(arrays["bias"], requires_grad=True)
        optimizer = torch.optim.SGD(
            [
                {"params": [kernel], "lr": RATE, "weight_decay": DECAY},
                {"params": [bias], "lr": RATE * BIAS_FACTOR},
            ],
            lr=RATE,
            **arguments,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        reached = {"kernel": [], "bias": []}
        for step in range(STEPS):
            kernel.grad = torch.tensor(arrays["kernel_gradients"][step])
            bias.grad = torch.tensor(arrays["bias_gradients"][step])
            optimizer.step()
            schedule.step()
            reached["kernel"].append(kernel.detach().numpy().copy())
            reached["bias"].append(bias.detach().numpy().copy())
        arrays |= {f"{case}/{name}": np.stack(weights) for name, weights in reached.items()}
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {FILE.stat().st_size} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
