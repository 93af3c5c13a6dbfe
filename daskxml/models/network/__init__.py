"""Networks: one flat array of parameters, layers over it, output layers, ranking."""
