"""How near a training step comes to the core's peak, and what its time goes to.

    python benchmarks/peak.py [lenet] [cnn] …

One thread. The peak is the best rate that a large product of matrices, or a large convolution, was seen to reach:
the libraries behind them do not all use the same instructions. A step's arithmetic is what PyTorch's
FLOP counter counts, a multiplication and an addition as two; its time is the median; shares are the profiler's.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import conv2d, cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from fedacg.core.vector import FlatModel, clip
from fedacg.runs.choices import preference_of, takes_channels_last
from speed import CLIP, DECAY, LR, WORKLOADS

PARTS = {
    "convolutions": ("conv",),
    "normalisation": ("norm_backward", "native_group_norm", "batch_norm"),
    "pooling": ("pool",),
    "linear layers": ("mm", "linear"),
    "rectifiers": ("relu", "threshold", "clamp"),
}
"""Kernels by what their names have in them."""


def seconds(function: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        begin = perf_counter()
        function()
        found.append(perf_counter() - begin)
    return found


def peaks() -> dict[str, float]:
    """The best rates seen, in floating-point operations per second."""
    a, b = torch.randn(2, 1024, 1024)
    x = torch.randn(16, 64, 56, 56).contiguous(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        return {
            "matrix product": 2 * 1024**3 / min(seconds(lambda: a @ b, 30)),
            "convolution": 2 * 16 * 56 * 56 * 64 * 64 * 9 / min(seconds(lambda: conv2d(x, w, padding=1), 30)),
        }


def step_of(name: str) -> Callable[[], None]:
    """A local step of a workload of speed.py: gradient, clip, decay, w ← w − ηg."""
    workload = WORKLOADS[name]
    module = workload.module()
    wish = preference_of(module)
    last = wish if wish is not None else len(workload.shape) == 3 and takes_channels_last(module, workload.shape)
    flat = FlatModel(module, channels_last=last)
    x = flat.prepare(torch.randn(workload.batch, *workload.shape))
    y = torch.randint(10, (workload.batch,))

    def step() -> None:
        flat.g.zero_()
        torch.autograd.backward(cross_entropy(flat.module(x), y))
        clip(flat.g, CLIP)
        flat.w.add_(flat.g.add_(flat.w, alpha=DECAY), alpha=-LR)

    return step


def shares(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Of the kernels' own time, by part."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            step()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    total, found = sum(times.values()), {}
    for part, marks in PARTS.items():
        mine = [key for key in times if any(mark in key.lower() for mark in marks)]
        found[part] = sum(times.pop(key) for key in mine) / total
    return found | {"the rest": sum(times.values()) / total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    names = parser.parse_args().workloads or list(WORKLOADS)
    torch.set_num_threads(1)
    found = peaks()
    print(", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in found.items()) + "\n")
    columns = [*PARTS, "the rest"]
    print(f"| step of | batch | GFLOP | ms | of peak | {' | '.join(columns)} |")
    print("| --- |" + " ---: |" * (4 + len(columns)))
    for name in names:
        step = step_of(name)
        few = 3 if name == "resnet18" else 100
        seconds(step, few)
        time = median(seconds(step, few))
        with FlopCounterMode(display=False) as counter:
            step()
        flops = counter.get_total_flops()
        parts = " | ".join(f"{share:.0%}" for share in shares(step, few).values())
        of_peak = flops / time / max(found.values())
        batch = WORKLOADS[name].batch
        print(f"| {name} | {batch} | {flops / 1e9:.3f} | {1e3 * time:.2f} | {of_peak:.0%} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
