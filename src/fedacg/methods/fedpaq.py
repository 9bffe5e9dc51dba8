"""FedPAQ as a part, `+paq`: clients upload quantised vectors, whatever the method.

    client   sends Q(Δ_i), unbiased: E[Q(x)] = x
    server   uses Q(Δ_i) wherever Δ_i stands, its momentum included; so does a client that keeps state

quantise.py defines Q and its bytes. (Reisizadeh et al., AISTATS 2020.)
"""

from dataclasses import replace

from fedacg.methods.method import Method
from fedacg.methods.quantise import Quantise


def quantise_upload(method: Method, bits: float) -> Method:
    return replace(method, upload=(*method.upload, Quantise(int(bits))))
