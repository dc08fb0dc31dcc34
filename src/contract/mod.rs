//! What the two halves of a burst say to each other.
