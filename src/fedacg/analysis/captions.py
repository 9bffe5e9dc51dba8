"""The words that go with each picture on the page.

docs/analysis.md says the same at more length, with the equations.
"""

from typing import NamedTuple


class Words(NamedTuple):
    """What stands over a picture, below it, and in its place for those who cannot see it."""

    title: str
    caption: str
    alt: str


LEAD = (
    "How the local models of a round lie to one another, and how steadily the global model learns. Divergence "
    "(relative) and cosine are means over all rounds, stability is one over all evaluated rounds. CKA, at the "
    "output of the head, and the losses of three local models and of their mean are those of the recorded "
    "round that is drawn."
)
SURFACE = Words(
    title="Loss surface",
    caption=(
        "The {measure} on the plane through three local models of round {round}, over {examples}. Every point of "
        "the plane is a whole model. The white dots are the models that three clients sent, the diamond is their "
        "mean, and the star is where the broadcast φ, from which all of them started, falls on the plane. Dark is "
        "low, and the colours mean the same in all panels. Good is a diamond in the dark, in a wide and even basin"
        " with the dots: then the mean of the models is better than each of them. The axes are distances between "
        "models, so mind their scales."
    ),
    alt=("Contours of the {measure} around three local models, a panel for each run."),
)
DIVERGENCE = Words(
    title="Weight divergence",
    caption=(
        "How far the local models of a round lie from their mean, relative to the length of that mean; below, the "
        "plain distance for every stage of the network and its head. Faint is every round, bold the mean over the "
        "rounds around it. A low line means that the clients stay close together, so that averaging loses little "
        "of what they have learnt."
    ),
    alt=("Weight divergence along the rounds, a line for each method, for the whole model and for its parts."),
)
CKA = Words(
    title="Similarity of features",
    caption=(
        "How alike the local models of round {round} see the same {examples} test examples, after every stage and "
        "at the output of the head: linear CKA, the mean over all pairs of clients. 1 means the same features up "
        "to rotation and scale, 0 unrelated ones; the scale need not begin at 0. Lines often fall towards the end,"
        " where each client fits its own labels. High is good."
    ),
    alt=("CKA between local models along the layers of the network, a line for each method."),
)
STABILITY = Words(
    title="Stability",
    caption=(
        "The squared distance of the test accuracy from its own moving average over some {window} rounds, in "
        "percentage points squared: along the rounds, on a scale by powers of ten, and as bars the mean over all "
        "of them. Low is steady: the model of one round is about as good as that of the next."
    ),
    alt=(
        "Squared distance of the accuracy from its moving average along the rounds, and a bar with the mean for "
        "each method."
    ),
)
DRIFT = Words(
    title="Drift of the clients",
    caption=(
        "The cosine between the update that a client sends and the mean update of its cohort. 1 means that it "
        "pulls where the cohort goes, 0 that it pulls across, less that it pulls back. One panel has the mean of "
        "the cohort in every round; where rounds were recorded, the other has every client as a dot, and their "
        "mean as a bar. High is good: little of the updates cancels out."
    ),
    alt=(
        "Mean cosine between client updates and the mean update along the rounds, a line for each method, and dots"
        " for single clients."
    ),
)
