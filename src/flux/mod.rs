//! Flux's own formats, as pure functions.
