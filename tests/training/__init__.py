"""Tests of nnxgraph.training."""
