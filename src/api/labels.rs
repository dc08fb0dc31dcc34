//! Labels and annotations, in one place.
