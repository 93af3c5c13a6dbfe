"""Label trees: linear scores for the children of every node of a balanced tree over the labels."""
