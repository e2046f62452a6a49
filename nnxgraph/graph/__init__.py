"""The graph engine: objects with identity, taken apart into a static description and leaves, and back."""
