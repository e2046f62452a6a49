"""The tests, by the path of what they test."""
