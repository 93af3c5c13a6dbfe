"""Models: their description, their parameters in one flat array, and the perceptron itself."""
