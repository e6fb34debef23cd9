"""The data set of the demo, its library, and the destination that it writes."""
