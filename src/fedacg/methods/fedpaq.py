"""FedPAQ as a part, `+paq`: clients upload quantised vectors, whatever the method.

    client   sends Q(Δ_i), unbiased: E[Q(x)] = x
    server   uses Q(Δ_i) wherever Δ_i stands, its momentum included; so does a client that keeps state

quantise.py defines Q and its bytes; with `bucket` = 0 there is one scale for the whole vector,
and with `norm` = 2 it is the Euclidean norm, as in QSGD.
(Reisizadeh et al., AISTATS 2020.)
"""

from dataclasses import replace

from fedacg.methods.method import Method
from fedacg.methods.quantise import BUCKET, Quantise


def quantise_upload(method: Method, bits: float, bucket: float = BUCKET, norm: float = 0) -> Method:
    return replace(method, upload=(*method.upload, Quantise(int(bits), int(bucket), int(norm))))
