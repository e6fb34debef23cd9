"""Count what a worker's processes do, and serve the figures to Prometheus."""
