"""`daskxml serve`: a trained model's answers over HTTP."""
