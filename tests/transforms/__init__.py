"""Tests of nnxgraph.transforms."""
