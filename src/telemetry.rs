//! Logging of a process.
