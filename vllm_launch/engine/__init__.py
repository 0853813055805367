"""One engine: the command that serves a launch config, its start, watch and sure stop, and what it says of itself."""
