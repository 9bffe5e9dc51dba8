"""FedAvg in bare PyTorch loops: two one-threaded processes, θ down and a sum up, and nothing else.

Clients take part in the order of their numbers. compare.py starts this program.
"""

import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import workload
from turns import Turns

WORKERS = 2


def work(connection: Connection, folder: Path) -> None:
    """Train the clients that are asked for, one after the other, and send back the sum of their models."""
    torch.set_num_threads(1)
    given = workload.read(folder)
    module = given.module()
    while (order := connection.recv()) is not None:
        theta, clients = order
        total = torch.zeros_like(given.theta)
        for client in clients:
            workload.load(module, torch.from_numpy(theta))
            workload.train(module, given.x[client], given.y[client], given.workload)
            total += workload.vector(module)
        connection.send(total.numpy())


def main(folder: Path, rounds: int, turns: Turns) -> None:
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    for _, theirs in pipes:
        context.Process(target=work, args=(theirs, folder), daemon=True).start()
    given = workload.read(folder)
    theta, cohort, clients = given.theta, given.workload.cohort, given.workload.clients
    for number in range(rounds):
        asked = [client % clients for client in range(number * cohort, (number + 1) * cohort)]
        for worker, (ours, _) in enumerate(pipes):
            ours.send((theta.numpy(), asked[worker::WORKERS]))
        theta = sum(torch.from_numpy(ours.recv()) for ours, _ in pipes) / cohort
        turns.played()
    turns.finish(theta.numpy(), {"torch": torch.__version__})
    for ours, _ in pipes:
        ours.send(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Turns(sys.argv[3]))
