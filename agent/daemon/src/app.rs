//! Constructs and joins.
