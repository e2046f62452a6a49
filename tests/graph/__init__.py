"""Tests of the graph engine."""
