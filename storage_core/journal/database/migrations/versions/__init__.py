"""The steps, from the first. One that was released is never changed: the next one mends it."""
