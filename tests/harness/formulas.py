"""The optimizers once more, in float64 and straight from their papers, on whole dense gradients."""

import numpy as np

MOMENTS = {"sgd": (), "momentum": ("b",), "nesterov": ("b",), "adam": "mv", "lamb": "mv",
           "row-rms": "v"}  # fmt: skip


class Reference:
    """A slow optimizer over named float64 arrays."""

    def __init__(self, config, parameters):
        self.config = config
        self.weights = {name: np.float64(array) for name, array in parameters.items()}
        self.state = {
            name: {moment: np.zeros(array.shape) for moment in MOMENTS[config.rule_of(name)]}
            for name, array in self.weights.items()
        }
        self.steps = 0

    def step(self, gradient, lr):
        """``gradient`` by name; rows of zeros wait in the first layer."""
        self.steps += 1
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        clip = self.config.clip_norm
        scale = clip / norm if clip and norm > clip else 1.0
        for name, g in gradient.items():
            moving = np.ones(len(g), bool)
            if name == "hidden0.weight":
                moving = g.any(axis=1)
            rate = lr * (self.config.output_lr if name.startswith("output.") else 1.0)
            state = {moment: array[moving] for moment, array in self.state[name].items()}
            self._move(name, moving, state, scale * g[moving], rate)
            for moment, array in state.items():
                self.state[name][moment][moving] = array

    def _move(self, name, moving, state, g, lr):
        config, rule, w = self.config, self.config.rule_of(name), self.weights[name][moving]
        decay = config.weight_decay if self.weights[name].ndim > 1 else 0.0
        if rule == "lamb":
            update = self._adam(state, g) + decay * w
            norms = np.sqrt((w**2).sum()), np.sqrt((update**2).sum())
            trust = norms[0] / norms[1] if min(norms) > 0 and self.weights[name].ndim > 1 else 1.0
            self.weights[name][moving] = w - lr * trust * update
            return
        if rule == "sgd":
            update = g
        elif rule == "adam":
            update = self._adam(state, g)
        elif rule == "row-rms":
            update = self._row_rms(state["v"], g)
        else:
            state["b"] = config.momentum * state["b"] + g
            update = g + config.momentum * state["b"] if rule == "nesterov" else state["b"]
        self.weights[name][moving] = w - lr * update - lr * decay * w

    def _row_rms(self, v, g):
        """``v`` of a matrix is in its first column."""
        config, is_matrix = self.config, g.ndim > 1
        square, held = (np.mean(g**2, axis=1), v[:, 0]) if is_matrix else (g**2, v)
        held[:] = config.beta2 * held + (1 - config.beta2) * square
        root = np.sqrt(held / (1 - config.beta2**self.steps)) + config.epsilon
        return g / (root[:, None] if is_matrix else root)

    def _adam(self, state, g):
        config = self.config
        state["m"] = config.beta1 * state["m"] + (1 - config.beta1) * g
        state["v"] = config.beta2 * state["v"] + (1 - config.beta2) * g**2
        m = state["m"] / (1 - config.beta1**self.steps)
        v = state["v"] / (1 - config.beta2**self.steps)
        return m / (np.sqrt(v) + config.epsilon)
