"""Rank labels by a stored network with NumPy and safetensors alone, without daskxml.

    python docs/examples/read_model.py runs/first 3:0.5 17:1.25

The features of one row, counted from 0, with their values; the best five labels are printed.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def read(directory):
    """Return the description of a network, and its arrays by name, in float32."""
    header = json.loads((Path(directory) / "model.json").read_text())
    arrays = load_file(Path(directory) / "model.safetensors")
    for first in [name for name in arrays if name.endswith(".first")]:
        name = first.removesuffix(".first")  # of 8 or 16 bits a weight: see `daskxml compress`
        digits, scale = arrays.pop(first).astype(np.float32), arrays.pop(f"{name}.scale")
        fine = arrays.pop(f"{name}.second")
        arrays[name] = scale[:, None] * (digits + fine / 254.0 if len(fine) else digits)
    return header, arrays


def rank(header, arrays, features, values, k=5):
    """Return the best labels of a row, and their probabilities."""
    spec, values = header["spec"], np.asarray(values, np.float32)
    if header["preprocessing"]["normalize"] == "l2":
        values = values / (np.linalg.norm(values) or 1.0)
    layers = [f"hidden{number}" for number in range(len(spec["hidden"]))]
    first = arrays["hidden0.weight"] if layers else arrays["output.weight"].T
    state = values @ first[features]  # (units,): the weights of a row's features, summed
    for number, name in enumerate(layers):
        state = (state if number == 0 else state @ arrays[f"{name}.weight"]) + arrays[
            f"{name}.bias"
        ]
        state = np.maximum(state, 0) if spec["activation"] == "relu" else 1 / (1 + np.exp(-state))
    logits = (arrays["output.weight"] @ state if layers else state) + arrays["output.bias"]
    if spec["loss"] == "softmax":
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
    else:
        scores = 1 / (1 + np.exp(-logits))
    best = np.argsort(-logits, kind="stable")[:k]
    return best, scores[best]


if __name__ == "__main__":
    given = [pair.split(":") for pair in sys.argv[2:]]
    model = read(sys.argv[1])
    found = rank(*model, [int(f) for f, _ in given], [float(v) for _, v in given])
    names = model[0].get("label_names")
    for label, score in zip(*found, strict=True):
        print(f"{score:.4f}  {names[label] if names else label}")
