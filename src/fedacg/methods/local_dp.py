"""Differential privacy at the client, `+local-dp`: for those who trust no server.

    client   all that it sends, buffers too, is one vector u_i:  u_i ← u_i · min(1, C/‖u_i‖) + N(0, z²C²)
    server   anything: what comes after the noise costs nothing

An upload with any data might be one with any other: two of them are up to 2C apart, so that one visit costs what
the Gaussian mechanism with z/2 costs. ε is that of the client with the most visits; sampling of clients hides
nothing here. That a client took part is not hidden, and neither is anything but its vectors: methods whose clients
send counts or steps are refused, and so are weights by examples.
"""

from dataclasses import replace

from fedacg.errors import InputError
from fedacg.methods.dp import ClipAndNoise, Promise, refuse_second
from fedacg.methods.method import Method
from fedacg.methods.sums import refuse_counts


def add_local_dp(method: Method, clip: float, noise: float, delta: float, budget: float) -> Method:
    refuse_second(method)
    refuse_counts(method.rule)
    if method.rule.first_exchange:
        raise InputError("its clients first send full gradients, which no noise covers")
    link = ClipAndNoise(clip, Promise("local", noise, delta, budget))
    return replace(method, upload=(link, *method.upload))
