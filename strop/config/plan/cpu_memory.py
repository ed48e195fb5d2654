"""stub"""

from dataclasses import dataclass


@dataclass
class P:
    total: float


def predict_peak(run, size):
    return P(1.0)
