"""Numbers of the theory pages, computed without the package."""
