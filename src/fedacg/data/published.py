"""The counts of the complete data sets, as their makers state them, and how a copy differs from them."""

from dataclasses import dataclass

import torch

from fedacg.data.examples import Contents, Examples, labels


@dataclass(frozen=True)
class Published:
    """What is known of the complete data set; None for what is not."""

    train: int | None = None
    test: int | None = None
    together: int | None = None
    """Training and test examples, where the cut between them is this project's own."""
    train_per_class: int | None = None
    test_per_class: int | None = None
    """Where all classes have equally many."""
    clients: int | None = None
    least_clients: int | None = None
    """Where the makers' own numbers differ: no complete copy has fewer."""

    def differences(self, contents: Contents, classes: int) -> list[str]:
        """How the counts of a copy differ from the published ones, each as words without a subject."""
        train, test = len(contents.train), len(contents.test)
        clients = len(contents.owners.names) if contents.owners else 0
        expected = (
            ("training examples", train, self.train),
            ("test examples", test, self.test),
            ("examples", train + test, self.together),
            ("clients", clients, self.clients),
        )
        found = [
            f"has {has} {what} where there should be {should}"
            for what, has, should in expected
            if should is not None and has != should
        ]
        if self.least_clients is not None and clients < self.least_clients:
            found.append(f"has {clients} clients where there should be at least {self.least_clients}")
        for what, part, each in (
            ("training", contents.train, self.train_per_class),
            ("test", contents.test, self.test_per_class),
        ):
            found += [] if each is None else _uneven(what, part, each, classes)
        return found


def _uneven(what: str, part: Examples, each: int, classes: int) -> list[str]:
    sizes = torch.bincount(labels(part), minlength=classes)
    wrong = torch.nonzero(sizes != each).flatten().tolist()
    if not wrong:
        return []
    others = f" (and {len(wrong) - 1} other classes differ)" if len(wrong) > 1 else ""
    return [f"has {int(sizes[wrong[0]])} {what} examples of class {wrong[0]} where there should be {each}{others}"]


PUBLISHED: dict[str, Published] = {
    "mnist": Published(60_000, 10_000),
    "fashion-mnist": Published(60_000, 10_000),
    "cifar10": Published(50_000, 10_000, train_per_class=5000, test_per_class=1000),
    "cifar100": Published(50_000, 10_000, train_per_class=500, test_per_class=100),
    "tiny-imagenet": Published(100_000, 10_000, train_per_class=500, test_per_class=50),
    # LEAF's paper counts 3,550 writers; its script, run today, finds up to 3,597.
    "femnist": Published(least_clients=3_550),
    "celeba": Published(together=200_288, clients=9_343),
    # Roles as LEAF's script finds them; the cut is this project's own.
    "shakespeare": Published(3_794_066, 361_605, clients=1_130),
}
